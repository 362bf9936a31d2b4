"""Reads a trace that anybody may have written: everything is checked, nothing is executed, memory holds one step.

A manifest is read by itself; Arrow is only loaded for events.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.errors import UsageError
from opguard_ci.trace.files import MANIFEST, damaged, events_name, open_file, values_name
from opguard_ci.trace.manifest import NotAManifest, parse
from opguard_ci.trace.model import StepInfo, StepTable

if TYPE_CHECKING:
    from opguard_ci.trace import framing
    from opguard_ci.trace.arrays import StepArrays
    from opguard_ci.trace.events import Events
    from opguard_ci.trace.known import Value

MAX_MANIFEST: Final = 1 << 26
"""Largest manifest that is read, in bytes."""


def read_trace(path: str | Path, *, verify: bool = True, objects: Iterable[Path] = ()) -> Trace:
    """Open a trace; events are only read when they are asked for.

    Args:
        path: a trace folder, its ``manifest.json``, or a golden's manifest.
        verify: compare the sha256 of complete event files with the manifest before they are read.
        objects: more folders in which a golden's events may lie, by their sha256.

    Raises:
        UsageError: ``trace-not-found``, ``not-a-trace`` or ``trace-damaged``; also later, when events are read.
        IncomparableError: ``other-schema``.

    """
    given = Path(path)
    try:
        real = given.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise UsageError("trace-not-found", f"{given} does not exist; name a trace folder or a manifest.") from None
    file = real / MANIFEST if real.is_dir() else real
    if real.is_dir() and not os.path.lexists(file):
        raise UsageError("not-a-trace", f"{given} has no {MANIFEST}; name a folder that `opguard run -o` wrote.")
    with open_file(file) as stream:
        data = stream.read(MAX_MANIFEST + 1)
    if len(data) > MAX_MANIFEST:
        raise UsageError("not-a-trace", f"{file} is larger than {MAX_MANIFEST} bytes, too large for a manifest.")
    try:
        manifest = parse(data)
    except NotAManifest as error:
        raise UsageError("not-a-trace", f"{file} is not the manifest of a trace: {error}.") from None
    except ValueError as error:
        raise damaged(file, f"the key {error}") from None
    return Trace(given, manifest, _Places(file.parent, (file.parent.parent / "objects", *objects)), verify)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where event files are looked for: beside the manifest by name, in ``objects`` by sha256."""

    folder: Path
    objects: tuple[Path, ...]

    def find(self, name: str, sha256: str | None) -> Path | None:
        candidates = [self.folder / name]
        if sha256 is not None:
            candidates += [folder / sha256 for folder in self.objects]
        return next((file for file in candidates if os.path.lexists(file)), None)


class Trace:
    """A trace on disk. ``manifest`` is checked and has every key; ``path`` is what was asked for."""

    def __init__(self, path: Path, manifest: dict[str, Any], places: _Places, verify: bool) -> None:
        self.path = path
        self.manifest = manifest
        self._places = places
        self._verify = verify
        self._events: dict[int, Events] = {}
        self._known: dict[int, dict[Value, bytes]] = {}

    def index(self, rank: int = 0) -> list[StepInfo]:
        """The steps that can be read, in order, without unpacking them."""
        return list(self._open(rank).index)

    def steps(self, rank: int = 0) -> Iterator[StepTable]:
        """All steps in order, one at a time; of an incomplete trace, those that were written whole."""
        return self._open(rank).all()

    def step(self, number: int, rank: int = 0) -> StepTable:
        """One step. ``UsageError("no-such-step")`` if the trace lacks it."""
        return self.arrays(number, rank).table()

    def arrays(self, number: int, rank: int = 0) -> StepArrays:
        """One step as arrays, fastest in order. ``UsageError("no-such-step")`` if the trace lacks it."""
        return self._open(rank).one(number)

    def numbers(self, value: int, spec: str, rank: int = 0) -> bytes | None:
        """The numbers of a value, in logical order; None if the run kept none (``UsageError`` as for events)."""
        if rank not in self._known:
            self._known[rank] = self._load_known(rank)
        return self._known[rank].get((value, spec))

    def _load_known(self, rank: int) -> dict[Value, bytes]:
        name = values_name(rank)
        if self.manifest["complete"] and name not in self.manifest["objects"]:
            return {}
        from opguard_ci.trace.events import load_known

        return load_known(*self._scan(name))

    def _open(self, rank: int) -> Events:
        from opguard_ci.trace.events import Events

        if rank not in self._events:
            if not 0 <= rank < self.manifest["ranks"]:
                raise UsageError("no-such-rank", f"{self.path} has {self.manifest['ranks']} ranks, counted from 0.")
            self._events[rank] = Events(*self._scan(events_name(rank)))
        return self._events[rank]

    def _scan(self, name: str) -> tuple[Path | None, framing.Frames]:
        """The file of that name with its messages, checked; none of an incomplete trace that lacks it."""
        from opguard_ci.trace import framing
        from opguard_ci.trace.events import scan

        complete = self.manifest["complete"]
        entry = self.manifest["objects"].get(name)
        file = self._places.find(name, entry and entry["sha256"])
        if file is None and not complete:
            return None, framing.Frames((), closed=False)
        if file is None:
            raise UsageError("events-missing", f"{name} of {self.path} is not there; record the trace again.")
        hasher = hashlib.sha256() if self._verify and complete and entry else None
        frames = scan(file, hasher)
        if complete and not frames.closed:
            raise damaged(file, "it ends early although the manifest calls it complete")
        if hasher is not None and hasher.hexdigest() != entry["sha256"]:
            raise damaged(file, "its sha256 is not the one in the manifest")
        return file, frames
