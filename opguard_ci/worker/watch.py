"""Watches for files of the user's checkout that a run opens although it runs another commit."""

# Why: paths come as the run spelled them, and every call costs the run.
# ruff: noqa: PTH100, PTH109, PTH118
from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from opguard_ci.worker.plan import ImportPlan

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1, "os.chmod": 1, "os.chown": 1,
           "os.link": 2, "os.symlink": 2, "os.utime": 1, "shutil.rmtree": 1, "shutil.move": 2}  # fmt: skip
"""Audit events that change files, and how many of their first arguments are paths."""


class Watch:
    """What the audit hook saw: ``reads`` and ``writes`` are paths in the user's checkout, in order of first use.

    Writes there, and through links to untracked inputs, are refused: the run gets a PermissionError.
    """

    def __init__(self, plan: ImportPlan) -> None:
        self.reads: dict[str, None] = {}
        self.writes: dict[str, None] = {}
        self._borders = plan.borders()
        self._links = tuple(os.path.join(plan.tree, link) for link in plan.linked)
        self._is_active = True
        self._follow_folder(os.getcwd())

    def stop(self) -> None:
        """Stop looking: an audit hook cannot be removed, only told to do nothing."""
        self._is_active = False

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take one audit event; most of the many kinds leave at the first test."""
        if event == "open":
            if self._is_active:
                path, _, flags = arguments
                self._look(path, isinstance(flags, int) and bool(flags & WRITING))
        elif event in CHANGES:
            if self._is_active:
                for path in arguments[: CHANGES[event]]:
                    self._look(path, True)
        elif event == "os.chdir" and self._is_active and isinstance(arguments[0], (str, bytes, os.PathLike)):
            self._follow_folder(os.path.abspath(os.fsdecode(arguments[0])))

    def _follow_folder(self, folder: str) -> None:
        self._is_inside = self._borders.is_users(folder)

    def _look(self, path: object, is_write: bool) -> None:
        if isinstance(path, (bytes, os.PathLike)):
            path = os.fsdecode(path)
        if not isinstance(path, str):  # an open file's number
            return
        if not path.startswith("/") and (is_write or self._is_inside or path.startswith("..")):
            path = os.path.abspath(path)
        elif "/../" in path:
            path = os.path.normpath(path)
        if self._borders.is_users(path):
            (self.writes if is_write else self.reads)[path] = None
        elif is_write and any(path == link or path.startswith(link + "/") for link in self._links):
            self.writes[path] = None
        else:
            return
        if is_write:
            raise PermissionError(
                errno.EACCES, "a run of another commit may not change files of the working tree", path
            )


def watch(plan: ImportPlan) -> Watch:
    """Start watching this process for as long as it lives, or until `Watch.stop`."""
    seen = Watch(plan)
    hook: Callable[[str, tuple[Any, ...]], None] = seen.hook
    sys.addaudithook(hook)
    return seen
