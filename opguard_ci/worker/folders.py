"""Folders of the cache that nobody else may enter, for sockets and notes of running processes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from opguard_ci.errors import UsageError
from opguard_ci.worker.cache import cache_folder


def private_folder(name: str) -> Path:
    """A folder in the cache that only this user can enter, made if need be.

    Raises UsageError if it cannot be made, or belongs to somebody else, who could then run code as this user.
    """
    folder = cache_folder() / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        message = f"The cache folder {folder} cannot be used ({error.strerror}); set OPGUARD_CACHE to another."
        raise UsageError("cache-unusable", message) from error
    if status.st_uid != os.getuid():
        raise UsageError(
            "cache-unusable", f"The cache folder {folder} belongs to another user; set OPGUARD_CACHE to another."
        )
    return folder
