"""What code a run in a working tree has that its commit does not name: a digest by which to know it again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from opguard_ci.worker.git import Repository

_MAX_FILES: Final = 5000
"""A folder outside of a repository with more Python files is not looked through."""
_SKIPPED: Final = frozenset(("__pycache__", "node_modules", "site-packages"))


def edits_of(repository: Repository, paths: Iterable[str]) -> str | None:
    """A digest of the given changed paths of a working tree; None if there is none that is code.

    Tracked files count, and untracked ones of Python; other untracked files come and go beside the code.
    """
    tracked = repository.require("ls-files", "-z", "--full-name", "--", ":/").split(b"\0")
    kept = set(map(os.fsdecode, tracked))
    code = sorted(path for path in paths if path in kept or _is_code(repository.root / path))
    return _digest((path, repository.root / path) for path in code) if code else None


def edits_outside(folder: Path) -> str | None:
    """A digest of the Python files below a folder that is in no repository; None if there are too many."""
    files = []
    for file in _python_files(folder):
        files.append((os.path.relpath(file, folder), file))
        if len(files) > _MAX_FILES:
            return None
    return _digest(sorted(files))


def _python_files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if n not in _SKIPPED and not n.startswith("."))
        yield from (file for name in sorted(names) if _is_code(file := Path(place, name)))


def without_reports(root: Path, paths: Iterable[str]) -> list[str]:
    """Paths below ``root`` without those of traces and reproducers, which earlier runs left and which change no run."""
    is_report = cache(_is_report)
    return [path for path in paths if not is_report((root / path).parent)]


def _is_report(folder: Path) -> bool:
    return (folder / "events-0.arrows").exists() or any(folder.glob("*-before.safetensors"))


def _is_code(file: Path) -> bool:
    return file.suffix == ".py" and not _is_report(file.parent)


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()[:32]
