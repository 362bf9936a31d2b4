"""Building the compiled recorder, and doing without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opguard_ci.capture import native
from opguard_ci.capture.native import build as build_module
from opguard_ci.capture.native.build import BuildError, build, forwarding, library


@pytest.fixture
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and a process that has not loaded the module."""
    monkeypatch.setenv("OPGUARD_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "_loaded", None)
    return tmp_path


def test_every_file_is_compiled():
    """One that is in none of the goes would be missing only when the module is loaded."""
    compiled = [*build_module._PER_ISA, *(name for names in build_module._TOGETHER for name in names)]
    assert sorted(compiled) == sorted(source.stem for source in build_module._SOURCES.glob("*.cpp"))


def test_without_a_compiler(nothing_built: Path, monkeypatch: pytest.MonkeyPatch):
    """That there is none is said, and capture goes without."""
    monkeypatch.setenv("PATH", str(nothing_built))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        build()
    assert "could not be built: there is no C++ compiler" in native.load()[1]
    monkeypatch.setenv("OPGUARD_CACHE", str(nothing_built / "another"))
    assert native.load() == (None, "it is not built for this torch and Python")


def test_without_torchs_headers(nothing_built: Path, monkeypatch: pytest.MonkeyPatch):
    """Their absence is said, like everything else that comes from the system."""
    monkeypatch.setattr(build_module, "_TORCH", nothing_built)
    with pytest.raises(BuildError, match=r"PyInterpreter\.h: No such file"):
        build()


def test_with_another_interpreter_of_torch(nothing_built: Path, monkeypatch: pytest.MonkeyPatch):
    """A table of methods that we do not know how to stand in for does not compile."""
    header = nothing_built / "include" / "c10" / "core" / "impl" / "PyInterpreter.h"
    header.parent.mkdir(parents=True)
    header.write_text("struct Table { virtual void dispatch() = 0; virtual auto odd() -> int = 0; };")
    monkeypatch.setattr(build_module, "_TORCH", nothing_built)
    assert forwarding() == "\n"
    with pytest.raises(BuildError, match=r"the compiler failed \("):
        build()


def test_with_a_compiler_that_fails(nothing_built: Path, monkeypatch: pytest.MonkeyPatch):
    """What it says is shown, nothing half done is left, and the command says so."""
    compiler = nothing_built / "cc"
    compiler.write_text("#!/bin/sh\necho some error here\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match="some error here"):
        build()
    assert [path.name for path in library().parent.iterdir()] == ["failed.txt"]
    assert native.load() == (None, "it could not be built: the compiler failed (some error here)")
    command = [sys.executable, "-m", "opguard_ci.capture.native"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 1
    assert "some error here" in done.stderr


def test_a_compiler_that_takes_too_long(nothing_built: Path, monkeypatch: pytest.MonkeyPatch):
    """It is ended with what it has started, and that is said."""
    held = nothing_built / "held"
    compiler = nothing_built / "cc"
    compiler.write_text(f"#!/bin/sh\nflock {held} sleep 50\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(build_module, "_TIMEOUT", 1)
    with pytest.raises(BuildError, match="longer than 1 s"):
        build()
    done = subprocess.run(["flock", "--timeout", "10", held, "true"])
    assert done.returncode == 0


def test_a_library_that_cannot_be_loaded(nothing_built: Path):
    """It is left alone."""
    library().parent.mkdir(parents=True)
    library().write_bytes(b"no library")
    module, reason = native.load()
    assert module is None
    assert "cannot be loaded" in reason


def test_switched_off(monkeypatch: pytest.MonkeyPatch):
    """By the environment."""
    monkeypatch.setenv("OPGUARD_NATIVE", "0")
    assert native.load() == (None, "OPGUARD_NATIVE=0 switches it off")


def test_every_method_of_torchs_interpreter_is_handed_on():
    """All pure virtual methods of the header but the two that are ours."""
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "impl" / "PyInterpreter.h"
    declared = re.sub(r"//[^\n]*", "", header.read_text()).count("= 0;")
    methods = re.findall(r"(\w+)\([^)]*\) const override", forwarding())
    assert len(methods) == len(set(methods)) == declared - 2
    assert {"incref", "sizes", "python_dispatcher"} <= set(methods)
