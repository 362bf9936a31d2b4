"""Folders of the cache that processes share: one user at a time by a lock, the least recently used given up first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from opguard_ci.errors import UsageError
from opguard_ci.worker.files import bytes_on_disk, discard

DEFAULT_LIMIT = 4 << 30


class Slot:
    """A folder with a lock held on it; the lock ends with `release` or with the process.

    The lock is an ``flock``: a child that is forked without exec shares it, and keeps the folder locked while it lives.
    """

    def __init__(self, folder: Path, handle: int) -> None:
        self.folder = folder
        self._handle: int | None = handle

    @property
    def is_locked(self) -> bool:
        """Whether the folder is still ours."""
        return self._handle is not None

    def release(self) -> None:
        """Let others have the folder; its age for the eviction counts from here."""
        if self._handle is not None:
            with suppress(OSError):
                os.utime(self._handle)
            os.close(self._handle)
            self._handle = None


class Pool:
    """Numbered folders below one place of the cache, handed out one user at a time."""

    def __init__(self, place: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        """``place``: a folder of folders of folders (``place/<group>/<number>``); ``limit``: bytes for all of them."""
        self.place = place
        self.limit = limit

    def take(self, group: str) -> Slot:
        """The first free folder of ``group``, or a new one (UsageError: cache-unwritable)."""
        for number in count():
            folder = self.place / group / str(number)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                slot = _lock(folder)
            except OSError as error:
                raise UsageError(
                    "cache-unwritable",
                    f"The cache folder {self.place} cannot be written ({error}); point OPGUARD_CACHE to another one.",
                ) from error
            if slot is not None:
                return slot
        raise AssertionError("count() does not end")

    def trim(self) -> list[Path]:
        """Remove free folders, the longest unused first, until all together keep to the limit; returns which."""
        ages = []
        for folder in self._folders():
            with suppress(OSError):
                ages.append(((folder / "lock").stat().st_mtime_ns, folder))
        sizes = {folder: bytes_on_disk(os.fsencode(folder)) for _, folder in ages}
        total, removed = sum(sizes.values()), []
        for _, folder in sorted(ages):
            if total <= self.limit:
                break
            slot = _lock(folder)
            if slot is None:
                continue
            discard(os.fsencode(folder))  # the lock file goes too; whoever waits on it sees that and starts over
            slot.release()
            total -= sizes[folder]
            removed.append(folder)
        return removed

    def _folders(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            for group in self.place.iterdir():
                with suppress(FileNotFoundError, NotADirectoryError):
                    yield from group.iterdir()


def _lock(folder: Path) -> Slot | None:
    """The folder, locked; None when somebody else has it or just removed it."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between our open and our lock another process may have removed the folder, or even made it anew.
        if os.path.samestat(os.fstat(handle), (folder / "lock").stat()):
            return Slot(folder, handle)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None
