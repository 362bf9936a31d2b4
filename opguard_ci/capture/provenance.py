"""Where an operator was called from: module path, user's stack, and for backward operators their forward's."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
import weakref
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from ..trace.model import NULL, Interner


def _folder(*paths: str) -> tuple[str, ...]:
    """Folders as prefixes of files in them, as they were named and with all links resolved."""
    return tuple(dict.fromkeys(form + os.sep for path in paths for form in (path, os.path.realpath(path))))


_TORCH = _folder(os.path.dirname(torch.__file__))  # noqa: PTH120 - the text of co_filename
_PACKAGE = _folder(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
_RECIPES = tuple(package + "recipes" + os.sep for package in _PACKAGE)
_STDLIB = _folder(sysconfig.get_paths()["stdlib"])
_SITE = _folder(sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"])
_SCRIPTS = _folder(sysconfig.get_paths()["scripts"])
_RUNNERS = (
    *(scripts + name for scripts in _SCRIPTS for name in ("pytest", "py.test")),
    *(str(Path(package).parent / "pytest_opguard") + os.sep for package in _PACKAGE),
    *(site + name + os.sep for site in _SITE for name in ("_pytest", "pluggy", "pytest", "xdist", "execnet")),
)
_MAX_FRAMES = 24
_RUN = tuple(package + "capture" + os.sep + "run.py" for package in _PACKAGE)
_END = 2


class Stacks:
    """User's stacks, interned by code position so that a known one costs a walk over the frames and no text."""

    def __init__(self, root: str, strings: Interner, folder: str | None = None) -> None:
        """``root``: where paths begin; ``folder``: where those begin that lie in it, but not below ``root``."""
        bases = [root] if folder is None else [root, folder]
        self._roots = [os.path.realpath(base).rstrip(os.sep) + os.sep for base in bases]
        self._strings = strings
        self._is_user: dict[int, int] = {}  # by code: 1 the user's, 0 not, _END: all below it are ours
        self._codes: dict[int, CodeType] = {}  # keeps the code alive so that its id stays its own
        self._ids: dict[tuple[int, ...], int] = {}
        self._lines: dict[tuple[int, int], str] = {}

    def current(self, frame: FrameType | None) -> int:
        """The id of the stack from ``frame`` outwards; ``NULL`` if no frame of it is the user's."""
        key: list[int] = []
        is_user = self._is_user
        while frame is not None:
            code = frame.f_code
            number = id(code)
            user = is_user.get(number)
            if user is None:
                user = self._learn(code)
            if user is _END:
                break
            if user:
                key += (number, frame.f_lasti)
                if len(key) >= 2 * _MAX_FRAMES:
                    break
            frame = frame.f_back
        if not key:
            return NULL
        found = self._ids.get(tuple(key))
        if found is None:
            found = self._ids[tuple(key)] = self._strings(
                "\n".join(self._line(*key[i : i + 2]) for i in range(0, len(key), 2))
            )
        return found

    def _learn(self, code: CodeType) -> int:
        self._codes[id(code)] = code
        user = _END if code.co_name == "_run" and code.co_filename in _RUN else int(is_user_file(code.co_filename))
        self._is_user[id(code)] = user
        return user

    def _line(self, number: int, lasti: int) -> str:
        text = self._lines.get((number, lasti))
        if text is None:
            code = self._codes[number]
            line = _line_number(code, lasti)
            source = linecache.getline(code.co_filename, line).strip().replace("\t", " ")[:300]
            text = "\t".join(
                (
                    self.shown(code.co_filename),
                    str(line),
                    code.co_qualname if sys.version_info >= (3, 11) else code.co_name,
                    source,
                )
            )
            self._lines[(number, lasti)] = text
        return text

    def shown(self, filename: str) -> str:
        """The path relative to the tree, or to site-packages; an absolute path only where there is neither."""
        path = os.path.realpath(filename)
        for base in (*self._roots, *_SITE, *_folder(str(Path(_PACKAGE[0]).parent))):
            if path.startswith(base):
                return path[len(base) :]
        return path


def is_user_file(filename: str) -> bool:
    """Whether a file belongs to the user (or a library of theirs) rather than to torch, the interpreter or us."""
    if filename.startswith("<"):
        return filename.startswith("<ipython") or filename in ("<stdin>", "<string>", "<console>")
    if filename.startswith(_RECIPES):
        return True
    if filename.startswith((*_TORCH, *_PACKAGE, *_RUNNERS)):
        return False
    return not (filename.startswith(_STDLIB) and not filename.startswith(_SITE))


def _line_number(code: CodeType, lasti: int) -> int:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if number is not None and start <= lasti < end:
            return number
    return line


class Modules(threading.local):
    """The path of the module that is being called, per thread, below the outermost one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.calls: list[torch.nn.Module] = []
        self.paths: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, tuple[weakref.ref[torch.nn.Module], str]]] = (
            weakref.WeakKeyDictionary()
        )

    def enter(self, module: torch.nn.Module) -> None:
        """A module's forward begins."""
        calls = self.calls
        self.names.append(self._path(calls[0], module) if calls else "")
        calls.append(module)

    def leave(self, module: torch.nn.Module) -> None:
        """A module's forward ended, or raised: calls above it are over too."""
        calls = self.calls
        for depth in range(len(calls) - 1, -1, -1):
            if calls[depth] is module:
                del calls[depth:], self.names[depth:]
                return

    def reset(self) -> None:
        """Forget calls that an exception left open."""
        del self.calls[:], self.names[:]

    def current(self) -> str | None:
        """The current path; None outside of modules, the empty string in the outermost one."""
        return self.names[-1] if self.names else None

    def _path(self, root: torch.nn.Module, module: torch.nn.Module) -> str:
        known = self.paths.get(root)
        entry = known.get(id(module)) if known is not None else None
        if entry is None or entry[0]() is not module:
            known = {id(m): (weakref.ref(m), name) for name, m in root.named_modules()}
            known.setdefault(id(module), (weakref.ref(module), f"{self.names[-1]}.{type(module).__name__}".lstrip(".")))
            self.paths[root] = known
            entry = known[id(module)]
        return entry[1]


class Origins:
    """From a backward node to the place of its forward operator, by sequence number."""

    _KEEP = 400_000

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, int]] = {}

    def remember(self, module: int, stack: int) -> None:
        """The operator just called in forward may have made an autograd node: note its place."""
        number = torch._C._autograd._get_sequence_nr() - 1
        if number not in self._places:
            if len(self._places) > self._KEEP:
                for old in list(self._places)[: self._KEEP // 2]:
                    del self._places[old]
            self._places[number] = (module, stack)

    def of_current_node(self) -> tuple[int, int] | None:
        """The place of the forward operator whose backward runs now."""
        node: Any = torch._C._current_autograd_node()
        return None if node is None else self._places.get(node._sequence_nr())
