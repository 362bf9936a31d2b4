"""The event file of one rank, step by step, and the file of what is known of values: what Arrow reads of a trace."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from opguard_ci.errors import UsageError
from opguard_ci.trace import framing
from opguard_ci.trace.arrays import StepArrays
from opguard_ci.trace.columns import ARROW_SCHEMA, MAX_EVENTS, Decoder
from opguard_ci.trace.files import damaged, open_file
from opguard_ci.trace.known import MAX_NUMBERS, Value, known_rows
from opguard_ci.trace.model import StepInfo, StepTable

ARROW_ERRORS: Final = (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError)
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
_MAX_KNOWN: Final = 2 * MAX_NUMBERS


def scan(file: Path, hasher: framing.Hasher | None) -> framing.Frames:
    """The messages of a file; ``UsageError`` if it is no stream of Arrow's."""
    with open_file(file) as stream:
        try:
            return framing.scan(stream, hasher)
        except ARROW_ERRORS as error:
            raise damaged(file, error) from None


def load_known(file: Path | None, frames: framing.Frames) -> dict[Value, bytes]:
    """The numbers of values that a file holds."""
    if file is None or not frames.messages:
        return {}
    end = frames.messages[-1].offset + frames.messages[-1].size
    if end > _MAX_KNOWN:
        raise damaged(file, f"it is larger than {_MAX_KNOWN} bytes")
    with open_file(file) as stream:
        data = stream.read(end) + _END
    try:
        return known_rows(iter(pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(use_threads=False))))
    except ARROW_ERRORS as error:
        raise damaged(file, error) from None


class Events:
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
            raise damaged(file, f"it claims more than {MAX_EVENTS} events")

    def _info(self, message: framing.Message, first: int) -> StepInfo:
        try:
            step, start = int(message.metadata["step"]), int(message.metadata["first"])
        except (KeyError, ValueError):
            raise damaged(self._file, "a record batch does not say which step it is") from None
        if start != first or (self.index and step <= self.index[-1].step):
            raise damaged(self._file, f"step {step} is out of order")
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
        with open_file(self._file) as stream:
            for message in self._messages[cursor.place : place + 1]:
                if message.kind != framing.BATCH or message is self._messages[place]:
                    stream.seek(message.offset)
                    cursor.source.left += stream.read(message.size)
        try:
            if cursor.batches is None:
                cursor.batches = self._batches(cursor.source)
            found = self._decoder.arrays(cursor.batches.read_next_batch(), info.step, info.first)
        except (*ARROW_ERRORS, StopIteration, UsageError) as error:
            cursor.reset()
            if isinstance(error, UsageError):
                raise
            raise damaged(self._file, f"step {info.step}: {error}") from None
        cursor.place = place + 1
        return found

    def _batches(self, source: _Messages) -> pa.RecordBatchStreamReader:
        try:
            reader = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False))
            schema = reader.schema
        except ARROW_ERRORS as error:
            raise damaged(self._file, error) from None
        for column in ARROW_SCHEMA:
            positions = schema.get_all_field_indices(column.name)
            if len(positions) != 1 or not schema.field(positions[0]).type.equals(column.type):
                raise damaged(self._file, f"column {column.name} is not of type {column.type}")
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
