"""The files of a trace: what they are called, and how those of a stranger are opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from opguard_ci.errors import UsageError

MANIFEST: Final = "manifest.json"


def events_name(rank: int) -> str:
    """The name of a rank's event file."""
    return f"events-{rank}.arrows"


def values_name(rank: int) -> str:
    """The name of the file of what is known of a rank's values."""
    return f"values-{rank}.arrows"


def part_name(rank: int) -> str:
    """The name of what a rank other than 0 writes of the manifest while the run lasts."""
    return f".rank-{rank}.json"


def open_file(file: Path) -> BinaryIO:
    """Open a file that a trace names: a regular one, in its own place."""
    try:
        # Not to follow a link out of the trace, nor to wait for the other end of a pipe.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if file.is_symlink():
            raise damaged(file, "it is a symbolic link; put the file itself there") from None
        raise UsageError("trace-not-found", f"cannot open {file}: {error.strerror}.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(file, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def damaged(file: Path | None, why: object) -> UsageError:
    """The error that says why a file of a trace cannot be read."""
    return UsageError("trace-damaged", f"{file} cannot be read: {' '.join(str(why).split())[:300]}.")
