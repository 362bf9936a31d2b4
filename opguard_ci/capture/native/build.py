"""Compiles the recorder's fast path, once per version of it, torch, Python and compiler."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

import pyarrow
import torch

from ...worker.cache import cache_folder

MODULE: Final = "opguard_native"
_SOURCES: Final = Path(__file__).parent / "src"
_TIMEOUT: Final = 600
_METHOD: Final = re.compile(r"virtual\s+([^~;{}]+?)\s*\b(\w+)\(([^;{}]*)\)\s*const\s*=\s*0;", re.DOTALL)


class BuildError(Exception):
    """The module cannot be built here; the message says why."""


def library() -> Path:
    """Where the module for this interpreter, torch and source lies once it is built."""
    return cache_folder() / "native" / _key() / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"


def failure() -> str:
    """Why the last attempt to build it failed; empty if there was none."""
    try:
        return _failed().read_text(errors="replace")
    except OSError:
        return ""


def _failed() -> Path:
    return library().with_name("failed.txt")


def _key() -> str:
    parts = [path.read_bytes() for path in (*sorted(_SOURCES.iterdir()), Path(__file__))]
    facts = (torch.__version__, torch.version.git_version, sys.version, pyarrow.__version__, sysconfig.get_platform())
    digest = hashlib.sha256(b"\0".join([*parts, *(str(fact).encode() for fact in facts)]))
    return digest.hexdigest()[:24]


def build() -> Path:
    """Compile the module, unless it is there already; its path. Several processes may do so at once.

    Raises:
        BuildError: No compiler, no headers, other headers than we know, or the compiler failed. ``failure`` repeats it.

    """
    target = library()
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _build(target)
    except OSError as error:
        raise BuildError(f"{error.filename}: {error.strerror}") from None
    except BuildError as error:
        _failed().write_text(str(error))
        raise
    _failed().unlink(missing_ok=True)
    return target


def _build(target: Path) -> None:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))), None)
    if compiler is None:
        raise BuildError("there is no C++ compiler (on Debian: apt-get install g++)")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise BuildError("Python's headers are missing (on Debian: apt-get install python3-dev)")
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        units = _units(folder)
        _run([[compiler, *_FLAGS, *flags, "-c", str(source), "-o", out] for source, out, flags in units])
        made = folder / target.name
        _run([[compiler, "-shared", *(out for _, out, _ in units), "-o", str(made), *_LINK]])
        made.replace(target)  # at once: nobody sees half of it


_TORCH: Final = Path(torch.__file__).parent
_FLAGS: Final = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-w")
_PER_ISA: Final = ("xxh3", "transpose")
_TOGETHER: Final = (("core", "looks", "recorder"), ("call", "rows", "launch"), ("memory", "region", "aside", "values"))
"""What is compiled in one go: torch's headers take longer than all that is behind them."""
_LINK: Final = (f"-L{_TORCH / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python")


def _units(folder: Path) -> list[tuple[Path, str, list[str]]]:
    """Source, object and flags of what is compiled. Writes what is made up of it into the folder."""
    xxhash = f"-I{Path(pyarrow.get_include()) / 'arrow' / 'vendored' / 'xxhash'}"
    isas: dict[str, list[str]] = {"baseline": []}
    if sysconfig.get_platform().endswith("x86_64"):  # chosen by the processor that it runs on
        isas |= {"avx2": ["-mavx2"], "avx512": ["-mavx512f"]}
    units = [
        (_SOURCES / f"{name}.cpp", str(folder / f"{name}-{isa}.o"), ["-O3", xxhash, f"-DOPGUARD_ISA={isa}", *flags])
        for isa, flags in isas.items()
        for name in _PER_ISA
    ]
    include = [
        f"-I{folder}",
        f"-I{_SOURCES}",
        *(f"-isystem{_TORCH / 'include' / below}" for below in (".", "torch/csrc/api/include")),
        f"-isystem{sysconfig.get_paths()['include']}",
        f"-DTORCH_EXTENSION_NAME={MODULE}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    (folder / "interpreter.inc").write_text(forwarding())
    for number, names in enumerate(_TOGETHER):
        source = folder / f"together{number}.cpp"
        source.write_text("".join(f'#include "{name}.cpp"\n' for name in names))
        units.append((source, str(folder / f"together{number}.o"), [*include, *(["-O3"] if "values" in names else [])]))
    return units


def _run(commands: list[list[str]]) -> None:
    """Run compilers side by side."""
    out, err = subprocess.PIPE, subprocess.STDOUT
    # Each in a group of its own: a compiler that is only told to end leaves its passes running.
    running = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        for command in commands
    ]
    try:
        for process in running:
            output = process.communicate(timeout=_TIMEOUT)[0].decode(errors="replace")
            if process.returncode:
                errors = [line for line in output.splitlines() if "error" in line] or output.splitlines() or [""]
                raise BuildError(f"the compiler failed ({errors[0].strip()[:500]})")
    except subprocess.TimeoutExpired:
        raise BuildError(f"the compiler took longer than {_TIMEOUT} s") from None
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def forwarding() -> str:
    """C++ methods that hand every virtual method of torch's interpreter but ``dispatch`` and ``detach`` on to it.

    Read from torch's own header, since they differ between versions. A method that is not understood here is missing
    then, and the compiler says so.
    """
    header = (_TORCH / "include" / "c10" / "core" / "impl" / "PyInterpreter.h").read_text()
    lines = []
    for result, name, parameters in _METHOD.findall(re.sub(r"//[^\n]*", "", header)):
        if name in ("dispatch", "detach"):
            continue
        types = [re.sub(r"\s+", " ", one).strip() for one in parameters.split(",") if one.strip()]
        named = [re.fullmatch(r"(.*[\s&*])(\w+)", one) for one in types]
        given = [match[1] if match is not None else one for one, match in zip(types, named, strict=True)]
        declared = ", ".join(f"{one} a{number}" for number, one in enumerate(given))
        passed = ", ".join(f"std::move(a{number})" for number in range(len(given)))
        lines.append(f"{result} {name}({declared}) const override {{ return torch_->{name}({passed}); }}")
    return "\n".join(lines) + "\n"
