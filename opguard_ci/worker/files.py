"""Walking, measuring and removing folders that a run may have left in any state; paths are bytes."""

# Why: pathlib knows only text, and a file name need not be text.
# ruff: noqa: PTH101, PTH108, PTH123
from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator


def walk(root: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """Every path below ``root`` with its lstat, links not followed; folders that a run locked are opened up."""
    stack = [b""]
    while stack:
        folder = stack.pop()
        full = root + b"/" + folder if folder else root
        if os.lstat(full).st_mode & 0o700 != 0o700:
            os.chmod(full, 0o755)
        with os.scandir(full) as listing:
            for entry in listing:
                path = folder + b"/" + entry.name if folder else entry.name
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    stack.append(path)
                yield path, found


def discard(path: bytes) -> None:
    """Remove a file, link or whole folder, whatever its permissions; nothing there is fine."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path)
        return
    for _ in walk(path):  # opens up what is locked
        continue
    shutil.rmtree(path)


def bytes_on_disk(root: bytes) -> int:
    """The space that a folder takes, as far as it can be seen: somebody may be changing it."""
    try:
        return sum(status.st_blocks * 512 for _, status in walk(root))
    except OSError:
        return 0


def read(path: bytes) -> bytes:
    """A file's bytes."""
    with open(path, "rb") as file:
        return file.read()
