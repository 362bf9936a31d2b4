"""Reads a trace that anybody may have written: everything is checked, nothing is executed, memory holds one step."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from opguard_ci.errors import UsageError
from opguard_ci.trace import framing
from opguard_ci.trace.arrays import StepArrays
from opguard_ci.trace.columns import ARROW_SCHEMA, MAX_EVENTS, Decoder
from opguard_ci.trace.known import MAX_NUMBERS, Value, known_rows
from opguard_ci.trace.manifest import NotAManifest, parse
from opguard_ci.trace.model import StepInfo, StepTable
from opguard_ci.trace.writer import MANIFEST, events_name, values_name

MAX_MANIFEST: Final = 1 << 26
"""Largest manifest that is read, in bytes."""

_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
_MAX_KNOWN: Final = 2 * MAX_NUMBERS
_ARROW_ERRORS: Final = (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError)


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
    with _open(file) as stream:
        data = stream.read(MAX_MANIFEST + 1)
    if len(data) > MAX_MANIFEST:
        raise UsageError("not-a-trace", f"{file} is larger than {MAX_MANIFEST} bytes, too large for a manifest.")
    try:
        manifest = parse(data)
    except NotAManifest as error:
        raise UsageError("not-a-trace", f"{file} is not the manifest of a trace: {error}.") from None
    except ValueError as error:
        raise _damaged(file, f"the key {error}") from None
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
        self._events: dict[int, _Events] = {}
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
        file, frames = self._scan(name)
        if file is None or not frames.messages:
            return {}
        end = frames.messages[-1].offset + frames.messages[-1].size
        if end > _MAX_KNOWN:
            raise _damaged(file, f"it is larger than {_MAX_KNOWN} bytes")
        with _open(file) as stream:
            data = stream.read(end) + _END
        try:
            return known_rows(iter(pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(use_threads=False))))
        except _ARROW_ERRORS as error:
            raise _damaged(file, error) from None

    def _open(self, rank: int) -> _Events:
        if rank not in self._events:
            if not 0 <= rank < self.manifest["ranks"]:
                raise UsageError("no-such-rank", f"{self.path} has {self.manifest['ranks']} ranks, counted from 0.")
            self._events[rank] = _Events(*self._scan(events_name(rank)))
        return self._events[rank]

    def _scan(self, name: str) -> tuple[Path | None, framing.Frames]:
        """The file of that name with its messages, checked; none of an incomplete trace that lacks it."""
        complete = self.manifest["complete"]
        entry = self.manifest["objects"].get(name)
        file = self._places.find(name, entry and entry["sha256"])
        if file is None and not complete:
            return None, framing.Frames((), closed=False)
        if file is None:
            raise UsageError("events-missing", f"{name} of {self.path} is not there; record the trace again.")
        hasher = hashlib.sha256() if self._verify and complete and entry else None
        with _open(file) as stream:
            try:
                frames = framing.scan(stream, hasher)
            except _ARROW_ERRORS as error:
                raise _damaged(file, error) from None
        if complete and not frames.closed:
            raise _damaged(file, "it ends early although the manifest calls it complete")
        if hasher is not None and hasher.hexdigest() != entry["sha256"]:
            raise _damaged(file, "its sha256 is not the one in the manifest")
        return file, frames


class _Events:
    """The event file of one rank."""

    def __init__(self, file: Path | None, frames: framing.Frames) -> None:
        self._file = file
        self._messages = frames.messages
        self._decoder = Decoder()
        self._cursor = _Cursor()
        self.index: list[StepInfo] = []
        self._places: dict[int, int] = {}  # of each step's record batch among the messages
        first = 0
        for place, message in enumerate(frames.messages):
            if message.kind == framing.BATCH:
                self.index.append(self._info(message, first))
                self._places[self.index[-1].step] = place
                first += message.rows
        self._infos = {info.step: info for info in self.index}
        if first > MAX_EVENTS:
            raise _damaged(file, f"it claims more than {MAX_EVENTS} events")

    def _info(self, message: framing.Message, first: int) -> StepInfo:
        try:
            step, start = int(message.metadata["step"]), int(message.metadata["first"])
        except (KeyError, ValueError):
            raise _damaged(self._file, "a record batch does not say which step it is") from None
        if start != first or (self.index and step <= self.index[-1].step):
            raise _damaged(self._file, f"step {step} is out of order")
        return StepInfo(step, first, message.rows)

    def all(self) -> Iterator[StepTable]:
        """All steps in order."""
        cursor = _Cursor()
        for info in self.index:
            yield self._arrays(cursor, info).table()

    def one(self, number: int) -> StepArrays:
        """One step, from the strings before it and its own batch."""
        info = self._infos.get(number)
        if info is None:
            raise UsageError("no-such-step", f"the trace has no step {number}.")
        return self._arrays(self._cursor, info)

    def _arrays(self, cursor: _Cursor, info: StepInfo) -> StepArrays:
        assert self._file is not None
        place = self._places[info.step]
        if place < cursor.place:
            cursor.reset()
        with _open(self._file) as stream:
            for message in self._messages[cursor.place : place + 1]:
                if message.kind != framing.BATCH or message is self._messages[place]:
                    stream.seek(message.offset)
                    cursor.source.left += stream.read(message.size)
        try:
            if cursor.batches is None:
                cursor.batches = self._batches(cursor.source)
            found = self._decoder.arrays(cursor.batches.read_next_batch(), info.step, info.first)
        except (*_ARROW_ERRORS, StopIteration, UsageError) as error:
            cursor.reset()
            if isinstance(error, UsageError):
                raise
            raise _damaged(self._file, f"step {info.step}: {error}") from None
        cursor.place = place + 1
        return found

    def _batches(self, source: _Messages) -> pa.RecordBatchStreamReader:
        try:
            reader = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False))
            schema = reader.schema
        except _ARROW_ERRORS as error:
            raise _damaged(self._file, error) from None
        for column in ARROW_SCHEMA:
            positions = schema.get_all_field_indices(column.name)
            if len(positions) != 1 or not schema.field(positions[0]).type.equals(column.type):
                raise _damaged(self._file, f"column {column.name} is not of type {column.type}")
        return reader


class _Cursor:
    """Where in the stream a reader stands: what follows is read without what came before, and batches that nobody asks
    for are left out.
    """

    __slots__ = ("batches", "place", "source")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.source = _Messages()
        self.batches: pa.RecordBatchStreamReader | None = None
        self.place = 0


class _Messages(io.RawIOBase):
    """A stream of the messages in ``left``, which are gone once they are read."""

    def __init__(self) -> None:
        self.left = bytearray()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = bytes(self.left[: size if size >= 0 else None])
        del self.left[: len(data)]
        return data


def _open(file: Path) -> BinaryIO:
    """Open a file that a trace names: a regular one, in its own place."""
    try:
        # Not to follow a link out of the trace, nor to wait for the other end of a pipe.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if file.is_symlink():
            raise _damaged(file, "it is a symbolic link; put the file itself there") from None
        raise UsageError("trace-not-found", f"cannot open {file}: {error.strerror}.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _damaged(file, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def _damaged(file: Path | None, why: object) -> UsageError:
    return UsageError("trace-damaged", f"{file} cannot be read: {' '.join(str(why).split())[:300]}.")
