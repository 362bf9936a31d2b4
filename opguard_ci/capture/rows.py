"""The events of a step while they are collected, and their turn into columns."""

from __future__ import annotations

import itertools
from typing import Any, Final

from ..trace.model import NULL, PHASES, StepTable, Strings

ReadRow = tuple[int, int, int, tuple[int, ...]]  # value, spec, flags, writers
WriteRow = tuple[int, int, int, int]  # value, spec, slot, flags

_SETUP, _FORWARD = PHASES.index("setup"), PHASES.index("forward")
_HEADS: Final = (
    "lane",
    "phase",
    "kind",
    "op",
    "args",
    "module",
    "stack",
    "key",
    "flags",
    "generator",
    "state_before",
    "state_after",
)
_WIDTH: Final = len(_HEADS) + 2
NO_DRAW: Final = (NULL, 0, 0)
"""Generator and its states of an event that draws nothing."""


class Rows:
    """Events in order. The session's lock guards it."""

    def __init__(self) -> None:
        self.num_events = 0  # of the whole trace; the number of the next one
        self.num_calls = 0  # of operators, and how many of them left only values that are known
        self.num_hashed = 0
        self._first = 0  # number of this step's first
        self.clear()

    def clear(self) -> None:
        """Forget what was collected."""
        # One after the other in flat lists: a tuple for each would have to be kept, and looked at by the collector.
        self._rows: list[int] = []
        self._reads: list[Any] = []
        self._writes: list[int] = []

    def append(self, row: tuple[int, ...], reads: list[ReadRow], writes: list[WriteRow]) -> None:
        """Append an event: the columns of ``_HEADS``, what it read, what it wrote."""
        self.num_events += 1
        for read in reads:
            self._reads += read
        for write in writes:
            self._writes += write
        self._rows += row
        self._rows += (len(self._reads), len(self._writes))

    def make_setup(self) -> None:
        """What was collected ran before the first step."""
        phases = self._rows[1::_WIDTH]
        self._rows[1::_WIDTH] = [_SETUP if phase == _FORWARD else phase for phase in phases]

    def take(self, step: int, strings: Strings) -> StepTable:
        """What was collected as the columns of a step; begins another."""
        table = StepTable(step, self._first, strings)
        rows, reads, writes = self._rows, self._reads, self._writes
        for place, name in enumerate(_HEADS):
            setattr(table, name, rows[place::_WIDTH])
        table.read_offsets += [end // 4 for end in rows[len(_HEADS) :: _WIDTH]]
        table.write_offsets += [end // 4 for end in rows[len(_HEADS) + 1 :: _WIDTH]]
        table.read_value, table.read_spec, table.read_flags = reads[0::4], reads[1::4], reads[2::4]
        writers = reads[3::4]
        table.writers = list(itertools.chain.from_iterable(writers))
        table.writer_offsets += itertools.accumulate(map(len, writers))
        table.write_value, table.write_spec = writes[0::4], writes[1::4]
        table.write_slot, table.write_flags = writes[2::4], writes[3::4]
        self.clear()
        self._first = self.num_events
        return table
