"""The Python API beside ``recipe`` and ``mark_step``: capture a block of code, compare two traces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError
from .recipe import LEVELS, PROFILES

if TYPE_CHECKING:
    from .compare.verdict import Verdict
    from .trace.reader import Trace


@contextmanager
def capture(path: str | os.PathLike[str], *, level: str = "auto", profile: str = "observe") -> Iterator[None]:
    """Capture what runs inside a ``with`` block, in this process, into the trace folder ``path``.

    Steps are the returns of ``optimizer.step()``, or what ``mark_step`` says. Works in a script and in a notebook.

    Args:
        path: The folder to make; it must not exist or be empty.
        level: ``full`` (every operator and what it read), ``op`` (what it read is taken from what was written),
            ``contract`` (step boundaries only) or ``auto`` (``full`` or ``op``, by how much a step reads).
        profile: ``observe`` touches nothing; ``strict`` and ``portable`` set what can still be set in a running
        process.

    Raises:
        UsageError: The folder is not free, or an argument is out of range.

    """
    if level not in LEVELS:
        raise UsageError("bad-level", f"level must be one of {', '.join(LEVELS)}, not {level!r}.")
    if profile not in PROFILES:
        raise UsageError("bad-profile", f"profile must be one of {', '.join(PROFILES)}, not {profile!r}.")
    from .capture.block import captured

    with captured(Path(path), level, profile):
        yield


def compare(reference: str | os.PathLike[str] | Trace, candidate: str | os.PathLike[str] | Trace) -> Verdict:
    """Compare two traces (folders, manifests, or traces already read).

    Raises:
        UsageError: A trace does not exist or is damaged.
        IncomparableError: Schema, scheme, ranks or level differ.

    """
    from .compare.verdict import compare_traces
    from .trace.reader import read_trace

    traces = [read_trace(os.fspath(t)) if isinstance(t, (str, os.PathLike)) else t for t in (reference, candidate)]
    return compare_traces(*traces)
