"""Targets that are collected again by a pytest node id, so that conftest files, paths and parameters hold.

``pytest_opguard.node:train_gelu_1a2b3c4d`` with the arguments ``recipe.py::train[gelu]`` is what
``recipe.py::train[gelu]`` is under pytest. The name only tells one target from another; the arguments decide.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from opguard_ci.errors import UntestableError
from opguard_ci.recipe import options_of, recipe

_NAME: Final = re.compile(r"\w+_[0-9a-f]{8}")
_QUIET: Final = ("no:cacheprovider", "no:faulthandler", "no:unraisableexception", "no:threadexception")
"""Plugins of pytest that a run in a forked child does without: they write files, or take over what reports crashes."""
_OPTIONS: Final = ("--rootdir=", "--ini=", "--import-mode=", "-p=")

held: dict[str, Callable[..., Any]] = {}
"""Recipes of this very process by node id: what ``--opguard-in-process`` runs without collecting again."""


def target_of(node: str) -> str:
    """The target for a node id: readable, and different for different ids."""
    name = re.sub(r"\W+", "_", node.rpartition("::")[2]).strip("_") or "recipe"
    return f"{__name__}:{name if not name[0].isdigit() else '_' + name}_{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def arguments_for(config: pytest.Config, node: str, cwd: str) -> tuple[str, ...]:
    """The target's arguments: the node id, relative to ``cwd``, after what decides how pytest would collect it."""
    found = []
    root = os.path.relpath(config.rootpath, cwd)
    if root != ".":
        found.append(f"--rootdir={root}")
    if config.inipath is not None:
        found.append(f"--ini={os.path.relpath(config.inipath, cwd)}")
    if config.getoption("importmode") != "prepend":
        found.append(f"--import-mode={config.getoption('importmode')}")
    plugins = [name for name in config.getoption("plugins") or () if not name.startswith("no:")]
    return (*found, *(f"-p={name}" for name in plugins), node)


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line of pytest for a target's arguments: nothing of the user's ``addopts`` or environment."""
    *options, node = arguments
    values: dict[str, list[str]] = {name: [] for name in _OPTIONS}
    for option in options:
        name = next((name for name in _OPTIONS if option.startswith(name)), None)
        if name is None:
            raise UntestableError("not-collected", f"{option!r} is no option of a pytest target.")
        values[name].append(option.removeprefix(name))
    root, ini = ([*values[name], default][0] for name, default in (("--rootdir=", "."), ("--ini=", "")))
    config = ini if ini and Path(ini).is_file() else os.devnull  # else pytest looks outside of the tree for one
    plugins = [*_QUIET, "opguard", *values["-p="]]
    return [
        f"--rootdir={root}", f"--confcutdir={root}", "-c", config, "-o", "addopts=", "--assert=plain",
        "--capture=no", "--no-summary",
        *(part for name in plugins for part in ("-p", name)),
        *(f"--import-mode={mode}" for mode in values["--import-mode="]),
        node,
    ]  # fmt: skip


def main(arguments: Sequence[str], plugin: object) -> str:
    """Run pytest for a target's arguments in this process, silently; what it printed is given back."""
    os.environ.pop("PYTEST_ADDOPTS", None)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        pytest.main(pytest_arguments(arguments), plugins=[plugin])
    return printed.getvalue()


class Child:
    """The pytest plugin that tells the others that they run in a child, where nothing is guarded again."""

    __name__ = "opguard-child"


def is_child(config: pytest.Config) -> bool:
    """Whether this pytest runs in a child of a guarded session."""
    return config.pluginmanager.has_plugin(Child.__name__)


class _Collector(Child):
    """Collects, and runs nothing."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []
        self.problems: list[str] = []
        self.path: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = list(session.items)
        self.path = list(sys.path)  # pytest takes `pythonpath` out again at its end
        return True


def collect(arguments: Sequence[str]) -> Callable[..., Any]:
    """What pytest collects for a target's arguments: a recipe with its parameters bound, or a test with the fixture.

    Raises UntestableError ``not-collected`` where pytest finds neither there.
    """
    node = arguments[-1]
    if node in held:
        return held[node]
    start_coverage()
    collector = _Collector()
    printed = main(arguments, collector)
    item: Any = collector.items[0] if len(collector.items) == 1 else None
    if item is not None and options_of(item.obj) is not None:
        sys.path[:] = collector.path
        return bound(item)
    if item is not None and "opguard" in item.fixturenames:
        from pytest_opguard.marked import test_function

        return test_function(arguments)
    text = "\n".join(collector.problems) or printed
    raise UntestableError("not-collected", f"pytest collects no recipe {node!r} here{last_error(text)}", text)


def bound(item: Any) -> Callable[..., Any]:
    """The recipe of an item as a function without arguments, a recipe itself."""
    options = options_of(item.obj)
    assert options is not None
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return item.obj  # type: ignore[no-any-return]
    return recipe(**options.as_arguments())(functools.partial(item.obj, **callspec.params))


@contextlib.contextmanager
def holding(node: str, item: Any, errors: list[BaseException]) -> Iterator[None]:
    """Have this process's targets for ``node`` run ``item`` itself; what it raises is put into ``errors`` too."""
    function = bound(item)
    options = options_of(function)
    assert options is not None

    @recipe(**options.as_arguments())
    def watched() -> Iterator[Any]:
        try:
            yield from function()
        except Exception as error:
            errors.append(error)
            raise

    held[node] = watched
    try:
        yield
    finally:
        del held[node]


def start_coverage() -> None:
    """Measure this process too if its parent is measured; a run of another commit is not what is measured."""
    from opguard_ci.worker.spawned import VARIABLE

    if is_measured() and VARIABLE not in os.environ:
        importlib.import_module("coverage").process_startup()


def is_measured() -> bool:
    """Whether coverage.py is asked, by its variables, to measure child processes."""
    return any(os.environ.get(name) for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"))


def last_error(text: str) -> str:
    """The last line that pytest marks as an error, as the end of a sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("E ")]
    return f": {lines[-1].removeprefix('E').strip()}" if lines else "."


def __getattr__(name: str) -> Any:
    """The function of a target of this module, collected when it is asked for."""
    if not _NAME.fullmatch(name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return collect(sys.argv[1:])
