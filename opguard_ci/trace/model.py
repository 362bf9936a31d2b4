"""What a trace holds: the columns of a step, and single events as the comparison sees them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SCHEMA: Final = 1
"""Version of the manifest and of the event columns."""

NO_VALUE: Final = 0
"""The fingerprint that stands for "has no value" (output of an ``empty``, unhashed tensor). No fingerprint is ever
0."""

NULL: Final = -1
"""The id of an absent string, generator or writer."""

PHASES: Final = ("setup", "data", "forward", "backward", "optimizer")
KINDS: Final = ("op", "view", "copy", "alloc", "contract", "region", "collective")
COMPUTING: Final = ("op", "collective", "region")
"""Kinds of events that make values of their own."""

# Flags of a read.
OVER: Final = 1  # the bytes changed since the last recorded write or read of them
OUTSIDE: Final = 2  # the memory was never written by a recorded operator
STATE: Final = 4  # the storage belongs to a parameter, buffer or optimizer state of the contract
STRIDED: Final = 8  # not contiguous
UNREAD: Final = (
    16  # an argument that the operator only overwrites: stands here for its place, its old content has no value
)
ASSUMED: Final = 32  # not hashed: the value that was last written or read there (level ``op``)

# Flags of a write.
WEAK: Final = 1  # at most 4 elements, or bool or integer, or all 0, or all 1: found everywhere, proves nothing
HIDDEN: Final = 2  # an argument that the schema calls read-only was changed
UNHASHED: Final = 4  # could not be fingerprinted; coverage says why

# Flags of an event.
RECOMPUTED: Final = 1  # run again by activation checkpointing, inside backward
RANDOM: Final = 2  # tagged as drawing from a generator
HOST: Final = 4  # hands a value to Python (``item``, ``equal``)


class Interner:
    """Strings by number, in order of first appearance."""

    __slots__ = ("_hashes", "ids", "strings")

    def __init__(self, strings: list[str] | None = None) -> None:
        self.strings: list[str] = list(strings or ())
        self.ids: dict[str, int] = {text: number for number, text in enumerate(self.strings)}
        self._hashes: npt.NDArray[np.uint64] | None = None

    def __call__(self, text: str) -> int:
        """The number of ``text``, which is added if it is new."""
        number = self.ids.get(text)
        if number is None:
            number = self.ids[text] = len(self.strings)
            self.strings.append(text)
        return number

    def get(self, number: int) -> str | None:
        """The string of a number; None for ``NULL``."""
        return None if number < 0 else self.strings[number]

    def hashes(self, hashed: Callable[[str], int]) -> npt.NDArray[np.uint64]:
        """The hash of each string, worked out once, by its number; behind them, at ``NULL``, a 0."""
        import numpy as np  # manifests are read, and compared, without it

        known = np.zeros(1, np.uint64) if self._hashes is None else self._hashes
        num_known = len(known) - 1
        if num_known < len(self.strings):
            fresh = np.array([*map(hashed, self.strings[num_known:]), 0], np.uint64)
            known = self._hashes = np.concatenate([known[:-1], fresh])
        return known


@dataclass(slots=True)
class Strings:
    """The interned strings of one trace, one table per column."""

    op: Interner = field(default_factory=Interner)
    module: Interner = field(default_factory=Interner)
    stack: Interner = field(default_factory=Interner)
    args: Interner = field(default_factory=Interner)
    key: Interner = field(default_factory=Interner)
    spec: Interner = field(default_factory=Interner)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Where a step stands: its number, its first event's number, and how many events it has."""

    step: int
    first: int
    events: int


@dataclass(slots=True)
class StepTable:
    """The events of one step, column by column.

    ``*_offsets`` have one entry more than there are events (or reads): the reads of event i are
    ``read_value[read_offsets[i]:read_offsets[i + 1]]``, the writers of read r are
    ``writers[writer_offsets[r]:writer_offsets[r + 1]]``. Event numbers count over the whole trace from 0; this step's
    events are ``first .. first + len(op) - 1``.
    """

    step: int
    first: int
    strings: Strings
    lane: list[int] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)  # index into PHASES
    kind: list[int] = field(default_factory=list)  # index into KINDS
    op: list[int] = field(default_factory=list)
    module: list[int] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)
    args: list[int] = field(default_factory=list)
    key: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    generator: list[int] = field(default_factory=list)
    state_before: list[int] = field(default_factory=list)  # fingerprint of the generator's state
    state_after: list[int] = field(default_factory=list)
    read_offsets: list[int] = field(default_factory=lambda: [0])
    read_value: list[int] = field(default_factory=list)
    read_spec: list[int] = field(default_factory=list)
    read_flags: list[int] = field(default_factory=list)
    writer_offsets: list[int] = field(default_factory=lambda: [0])
    writers: list[int] = field(default_factory=list)  # event numbers
    write_offsets: list[int] = field(default_factory=lambda: [0])
    write_value: list[int] = field(default_factory=list)
    write_spec: list[int] = field(default_factory=list)
    write_slot: list[int] = field(default_factory=list)  # >= 0: output number; < 0: read number ~slot was written
    write_flags: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.op)

    def events(self) -> Iterator[Event]:
        """The events of this step, as objects."""
        return (self.event(row) for row in range(len(self)))

    def event(self, row: int) -> Event:
        """Event number ``first + row`` as an object."""
        strings = self.strings
        lo, hi = self.read_offsets[row], self.read_offsets[row + 1]
        reads = tuple(
            Read(
                self.read_value[r],
                strings.spec.strings[self.read_spec[r]],
                tuple(self.writers[self.writer_offsets[r] : self.writer_offsets[r + 1]]),
                self.read_flags[r],
            )
            for r in range(lo, hi)
        )
        lo, hi = self.write_offsets[row], self.write_offsets[row + 1]
        writes = tuple(
            Write(
                self.write_value[w], strings.spec.strings[self.write_spec[w]], self.write_slot[w], self.write_flags[w]
            )
            for w in range(lo, hi)
        )
        draw = None
        if self.generator[row] != NULL:
            draw = Draw(self.generator[row], self.state_before[row], self.state_after[row])
        return Event(
            index=self.first + row,
            lane=self.lane[row],
            step=self.step,
            phase=PHASES[self.phase[row]],
            kind=KINDS[self.kind[row]],
            op=strings.op.strings[self.op[row]],
            module=strings.module.get(self.module[row]),
            stack=strings.stack.get(self.stack[row]),
            args=strings.args.get(self.args[row]) or "",
            key=strings.key.get(self.key[row]),
            flags=self.flags[row],
            reads=reads,
            writes=writes,
            draw=draw,
        )


@dataclass(frozen=True, slots=True)
class Read:
    """A tensor as an operator found it, before the call."""

    value: int
    spec: str  # dtype, shape and whatever else is not bytes: "float32[4,64]"
    writers: tuple[int, ...]  # the last writers of these bytes, as event numbers
    flags: int


@dataclass(frozen=True, slots=True)
class Write:
    """A tensor as an operator left it: an output, or an argument it changed."""

    value: int
    spec: str
    slot: int
    flags: int


@dataclass(frozen=True, slots=True)
class Draw:
    """What an operator did to a random generator."""

    generator: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Event:
    """One operator call, contract value, collective or compiled region.

    An event of kind ``contract`` has one read; ``op`` is its section (``loss``, ``parameter``, ``buffer``,
    ``optimizer``, ``gradient``, ``rng``, ``value``, ``final``), ``args`` its name and ``key`` its place by (optimizer,
    group, index).
    ``args`` of an operator is its argument text: ``self=%0, other=%1, alpha=1`` with read n written ``%n``.
    ``stack`` has one line per frame, innermost first: ``file<TAB>line<TAB>function<TAB>source``.
    """

    index: int
    lane: int
    step: int
    phase: str
    kind: str
    op: str
    module: str | None
    stack: str | None
    args: str
    key: str | None
    flags: int
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    draw: Draw | None

    @property
    def computes(self) -> bool:
        """Whether it makes values of its own: views, copies, allocations and contract values do not."""
        return self.kind in COMPUTING
