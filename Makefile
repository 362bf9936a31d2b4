# Each target works by itself on a machine that has only python3 (3.10 or newer), make and git.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: venv demo test lint bench

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "opguard_ci needs Python 3.10 or newer; name one: make PYTHON=python3.12 venv" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Making $(VENV) with torch and the tools of the tests: minutes, if pip has to load them first."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@echo "Compiling the recorder, if there is a C++ compiler: two minutes."
	@$(BIN)/python -m opguard_ci.capture.native >/dev/null || true
	@touch $@

demo: $(INSTALLED)
	$(BIN)/opguard demo

# Two files at a time; threads that wait must not take the cores from those that work.
test: $(INSTALLED)
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@actionlint=$$(PATH="$(CURDIR)/$(BIN):$$PATH" command -v actionlint) && "$$actionlint" || \
		{ [ -z "$$actionlint" ] && echo "actionlint is not installed; the workflows are only checked by tests" >&2; }

bench: $(INSTALLED)
	@$(BIN)/python -m opguard_ci.capture.native >/dev/null || true
	$(BIN)/python tests/benchmarks/capture.py
