"""The messages of an Arrow IPC stream, found and measured before Arrow is trusted with them.

Arrow allocates what a compressed buffer claims to hold. The walk below reads the claims first (Arrow's format:
`Message.fbs`, encapsulated message format), so that a small hostile file cannot ask for all memory, and so that a
stream that ends in the middle of a message is known by its whole messages.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Protocol

from opguard_ci.trace.columns import MAX_VALUES

MAX_METADATA: Final = 1 << 24
MAX_BODY: Final = 1 << 30
"""Most bytes of one message, as stored and as unpacked."""
MAX_STRINGS: Final = 1 << 30
"""Most bytes of all dictionaries together, as Python strings."""
_STRING_OVERHEAD: Final = 64

SCHEMA_MESSAGE: Final = 1
DICTIONARY: Final = 2
BATCH: Final = 3

_CONTINUATION: Final = 0xFFFFFFFF


class Hasher(Protocol):
    """What is told every byte of the file, such as ``hashlib.sha256()``."""

    def update(self, data: bytes, /) -> None:
        """Take in the next bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream, by place."""

    kind: int
    offset: int
    size: int
    rows: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frames:
    """The whole messages of a stream; ``closed`` if its end mark was there."""

    messages: tuple[Message, ...]
    closed: bool


def scan(file: BinaryIO, hasher: Hasher | None = None) -> Frames:
    """Find all whole messages from the start of ``file``; ``ValueError`` if something else stands there."""
    messages: list[Message] = []
    strings: dict[int, int] = {}
    offset = 0
    while True:
        message, used = _next(_Source(file, hasher), offset, strings)
        if message is None:
            return Frames(tuple(messages), closed=used > 0)
        if (message.kind == SCHEMA_MESSAGE) != (not messages):
            raise ValueError("the stream does not begin with its one schema")
        if message.size:
            messages.append(message)
        offset += used


class _Source:
    __slots__ = ("_file", "_hasher")

    def __init__(self, file: BinaryIO, hasher: Hasher | None) -> None:
        self._file, self._hasher = file, hasher

    def take(self, size: int) -> bytes | None:
        """The next ``size`` bytes; None if the file ends before."""
        data = self._file.read(size)
        if self._hasher is not None:
            self._hasher.update(data)
        return data if len(data) == size else None

    def at_end(self) -> bool:
        return not self._file.read(1)


def _next(source: _Source, offset: int, strings: dict[int, int]) -> tuple[Message | None, int]:
    """The next message and its size; (None, 0) at a cut end, (None, 8) at the end mark."""
    prefix = source.take(8)
    if prefix is None:
        return None, 0
    continuation, length = struct.unpack("<Ii", prefix)
    if continuation != _CONTINUATION or not 0 <= length <= MAX_METADATA:
        raise ValueError(f"there is no Arrow message at byte {offset}")
    if length == 0:
        if not source.at_end():
            raise ValueError("data follows the end of the stream")
        return None, 8
    metadata = source.take(length)
    if metadata is None:
        return None, 0
    try:
        kind, header, body_size, custom = _envelope(metadata)
        if not 0 <= body_size <= MAX_BODY:
            raise ValueError(f"the message at byte {offset} claims {body_size} bytes")
        body = source.take(body_size)
        if body is None:
            return None, 0
        rows = 0
        if kind == DICTIONARY:
            _count_strings(header, body, strings)
        elif kind == BATCH:
            rows = _check_buffers(header, body)[0]
        elif kind != SCHEMA_MESSAGE:
            raise ValueError(f"the message at byte {offset} is of an unknown kind")
    except struct.error:
        raise ValueError(f"the message at byte {offset} is garbled") from None
    used = 8 + length + body_size
    return Message(kind, offset, used, rows, custom), used


class _Table:
    """A flatbuffer table: just enough to read scalars, tables and vectors of it."""

    __slots__ = ("data", "position", "vtable", "vtable_size")

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position
        self.vtable = position - self.number("<i", position)
        self.vtable_size = self.number("<H", self.vtable)

    def number(self, kind: str, position: int) -> int:
        if position < 0:  # Python would count it from the end
            raise struct.error("negative offset")
        return int(struct.unpack_from(kind, self.data, position)[0])

    def place(self, slot: int) -> int | None:
        """Where the field lies; None if it has its default."""
        entry = 4 + 2 * slot
        if entry + 2 > self.vtable_size:
            return None
        offset = self.number("<H", self.vtable + entry)
        return self.position + offset if offset else None

    def scalar(self, slot: int, kind: str) -> int:
        place = self.place(slot)
        return 0 if place is None else self.number(kind, place)

    def follow(self, slot: int) -> int | None:
        place = self.place(slot)
        return None if place is None else place + self.number("<I", place)

    def table(self, slot: int) -> _Table | None:
        place = self.follow(slot)
        return None if place is None else _Table(self.data, place)

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit integers."""
        place = self.follow(slot)
        if place is None:
            return []
        count = self.number("<I", place)
        if count > len(self.data) // 16:
            raise struct.error("vector is longer than its message")
        numbers = struct.unpack_from(f"<{2 * count}q", self.data, place + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def text(self, slot: int) -> str:
        place = self.follow(slot)
        if place is None:
            return ""
        (text,) = struct.unpack_from(f"<{min(self.number('<I', place), len(self.data))}s", self.data, place + 4)
        return str(text, "utf-8", "replace")

    def tables(self, slot: int) -> list[_Table]:
        place = self.follow(slot)
        if place is None:
            return []
        count = self.number("<I", place)
        if count > len(self.data) // 4:
            raise struct.error("vector is longer than its message")
        starts = (place + 4 + 4 * item for item in range(count))
        return [_Table(self.data, start + self.number("<I", start)) for start in starts]


def _envelope(metadata: bytes) -> tuple[int, _Table, int, dict[str, str]]:
    """Kind, header, body size and custom metadata of a message."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    message = _Table(metadata, root)
    header = message.table(2)
    if header is None:
        raise struct.error("message without header")
    custom = {entry.text(0): entry.text(1) for entry in message.tables(4)}
    return message.scalar(1, "<B"), header, message.scalar(3, "<q"), custom


def _check_buffers(batch: _Table, body: bytes) -> tuple[int, int]:
    """The rows of a record batch and the bytes that it unpacks to, both within limits."""
    lengths = [length for length, _ in batch.pairs(1)]
    if min(lengths, default=0) < 0 or sum(lengths) > MAX_VALUES:
        raise ValueError(f"a step holds more than {MAX_VALUES} values")
    packed = batch.table(3) is not None
    size = 0
    for start, length in batch.pairs(2):
        if start < 0 or length < 0 or start + length > len(body):
            raise struct.error("buffer outside its message")
        claim = struct.unpack_from("<q", body, start)[0] if packed and length else length
        size += length if claim == -1 else claim
        if claim < -1 or size > MAX_BODY:
            raise ValueError(f"a step unpacks to more than {MAX_BODY} bytes")
    rows = batch.scalar(0, "<q")
    if not 0 <= rows <= MAX_VALUES:
        raise ValueError(f"a step holds more than {MAX_VALUES} values")
    return rows, size


def _count_strings(header: _Table, body: bytes, strings: dict[int, int]) -> None:
    """Add a dictionary message to the sizes by dictionary id."""
    batch = header.table(1)
    if batch is None:
        raise struct.error("dictionary without data")
    number, delta = header.scalar(0, "<q"), header.scalar(2, "<B")
    count, size = _check_buffers(batch, body)
    size += _STRING_OVERHEAD * count
    strings[number] = size + (strings.get(number, 0) if delta else 0)
    if sum(strings.values()) > MAX_STRINGS:
        raise ValueError(f"the strings of the trace are more than {MAX_STRINGS} bytes")
