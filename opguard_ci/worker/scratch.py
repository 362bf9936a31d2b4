"""Temporary folders that do not outlive a killed process for long: the next one clears them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from pathlib import Path
from typing import Final

_PREFIX: Final = "opguard-scratch-"
_LOCK: Final = "lock"
_NEWBORN: Final = 60.0
"""Seconds that a folder may be without its lock: whoever makes it has not come to that."""


class Scratch:
    """A folder in the temp folder, empty but for its lock, and removed when it is closed or garbage."""

    def __init__(self) -> None:
        _clear(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._end = weakref.finalize(self, _remove, self.path, lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder."""
        self._end()


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _clear(temp: Path) -> None:
    """Remove the folders of this user's processes that are gone."""
    for folder in temp.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if is_ours and time.time() - found.st_mtime > _NEWBORN and not _is_locked(folder / _LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _is_locked(file: Path) -> bool:
    """Whether somebody holds it; not if it is missing."""
    try:
        lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
