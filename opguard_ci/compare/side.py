"""One side of a comparison: its events and the look-ups that the rules of origin ask of it. Pure.

Look-ups are scoped to a step: across steps, stale and constant values exist everywhere (verdict.md, rule 2). Columns
answer where they can, and an event becomes an object when a rule looks at it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from ..trace.arrays import StepArrays
from ..trace.model import (
    COMPUTING,
    HIDDEN,
    HOST,
    KINDS,
    NO_VALUE,
    NULL,
    OVER,
    WEAK,
    Event,
    Read,
    StepInfo,
    StepTable,
    Strings,
)
from .hashes import Hasher, Hashes, Words, are_among
from .nominal import without_nominal_reads
from .values import base_name, is_empty

Mask = npt.NDArray[np.bool_]
_Calls = tuple[Words, npt.NDArray[np.int64]]
"""Hashes in order, and the row of each."""

_COMPUTING: Final = np.array([kind in COMPUTING for kind in KINDS])
_COLLECTIVE: Final = KINDS.index("collective")
_VIEW: Final = KINDS.index("view")
_COPY: Final = KINDS.index("copy")
_CONTRACT: Final = KINDS.index("contract")


def _emptiness(spec: str) -> int:
    return int(is_empty(spec))


class StepView:
    """The events of one step with what occurs in them."""

    def __init__(self, arrays: StepArrays, hasher: Hasher) -> None:
        self.step, self.arrays = arrays.step, arrays
        self._hasher = hasher
        self._made: dict[str, set[int]] = {}
        self._cached: dict[int, Event] = {}

    # Events

    def event(self, row: int) -> Event:
        """The event of a row; the same object each time."""
        found = self._cached.get(row)
        if found is None:
            found = self._cached[row] = self.arrays.event(row)
        return found

    def where(self, mask: Mask) -> list[Event]:
        """The events of the rows that are marked."""
        return [self.event(row) for row in np.flatnonzero(mask).tolist()]

    @property
    def events(self) -> list[Event]:
        """All events."""
        return [self.event(row) for row in range(len(self.arrays))]

    def row(self, event: Event) -> int:
        """The row of an event of this step."""
        return event.index - self.arrays.first

    @cached_property
    def is_op(self) -> Mask:
        """Which rows are operators, collectives or compiled graphs, views, copies and allocations aside."""
        found: Mask = _COMPUTING[self.arrays.kind]
        return found

    @cached_property
    def is_collective(self) -> Mask:
        """Which rows are collectives."""
        found: Mask = self.arrays.kind == _COLLECTIVE
        return found

    @cached_property
    def is_view(self) -> Mask:
        """Which rows are views."""
        found: Mask = self.arrays.kind == _VIEW
        return found

    @cached_property
    def is_copy(self) -> Mask:
        """Which rows are copies."""
        found: Mask = self.arrays.kind == _COPY
        return found

    @cached_property
    def is_contract(self) -> Mask:
        """Which rows are contract values."""
        found: Mask = self.arrays.kind == _CONTRACT
        return found

    @cached_property
    def is_host(self) -> Mask:
        """Which rows hand a value to Python."""
        found: Mask = (self.arrays.flags & HOST) != 0
        return found

    @cached_property
    def is_draw(self) -> Mask:
        """Which rows moved a generator."""
        arrays = self.arrays
        found: Mask = (arrays.generator != NULL) & (arrays.state_before != arrays.state_after)
        return found

    @cached_property
    def is_over(self) -> Mask:
        """Which rows read bytes that changed behind our back."""
        return self._of_reads((self.arrays.read_flags & OVER) != 0)

    @cached_property
    def put_unseen(self) -> set[int]:
        """The values that were read from bytes that changed behind our back."""
        return set(self.arrays.read_value[(self.arrays.read_flags & OVER) != 0].tolist())

    @cached_property
    def is_weak(self) -> Mask:
        """Which rows wrote a weak value."""
        return self._of_writes((self.arrays.write_flags & WEAK) != 0)

    @cached_property
    def is_hiding(self) -> Mask:
        """Which rows changed an argument that their schema calls read-only."""
        return self._of_writes((self.arrays.write_flags & HIDDEN) != 0)

    def is_at(self, op: str, module: str | None, phase: int) -> Mask:
        """Which rows are this operator in this module and phase."""
        strings = self.arrays.strings
        number = NULL if module is None else strings.module.ids.get(module, NULL - 1)
        found: Mask = self.arrays.op == strings.op.ids.get(op, NULL)
        found &= (self.arrays.module == number) & (self.arrays.phase == phase)
        return found

    def _of_reads(self, reads: Mask) -> Mask:
        """The rows that have any of some reads."""
        found = np.zeros(len(self.arrays), np.bool_)
        found[self.read_rows[reads]] = True
        return found

    def _of_writes(self, writes: Mask) -> Mask:
        found = np.zeros(len(self.arrays), np.bool_)
        found[self.write_rows[writes]] = True
        return found

    # Values

    @cached_property
    def known(self) -> Words:
        """All values that occur, in rising order."""
        found = np.sort(np.concatenate([self.arrays.read_value, self.arrays.write_value]))
        return found[found.searchsorted(np.uint64(NO_VALUE), "right") :]

    def knows(self, value: int) -> bool:
        """Whether a value occurs."""
        number = np.uint64(value)
        place = int(self.known.searchsorted(number))
        return place < len(self.known) and bool(self.known[place] == number)

    def made(self, base: str) -> set[int]:
        """The values that operators of a name wrote."""
        found = self._made.get(base)
        if found is None:
            names = self.arrays.strings.op.strings
            numbers = [number for number, op in enumerate(names) if base_name(op) == base]
            rows = np.repeat(np.isin(self.arrays.op, numbers), np.diff(self.arrays.write_offsets))
            found = self._made[base] = set(self.arrays.write_value[rows].tolist())
        return found

    @cached_property
    def hidden(self) -> set[str]:
        """The names of operators that changed an argument in hiding."""
        names = self.arrays.strings.op.strings
        return {base_name(names[number]) for number in self.arrays.op[self.is_hiding].tolist()}

    @cached_property
    def holds_something(self) -> Mask:
        """Which writes left a value: memory that nobody wrote has none, and tensors without an element."""
        arrays = self.arrays
        is_void = self._hasher.texts.of(arrays.strings, "spec", arrays.write_spec, _emptiness)
        found: Mask = (arrays.write_value != NO_VALUE) & (is_void == 0)
        return found

    @cached_property
    def weak(self) -> set[int]:
        """The values that were written as weak ones."""
        return set(self.arrays.write_value[(self.arrays.write_flags & WEAK) != 0].tolist())

    # Keys and links

    @cached_property
    def hashes(self) -> Hashes:
        """The hashes of the events' keys."""
        return self._hasher.hashes(self.arrays)

    @cached_property
    def _ops(self) -> _Calls:
        return self._sorted(self.is_op)

    @cached_property
    def _views(self) -> _Calls:
        return self._sorted(self.is_view)

    def _sorted(self, chosen: Mask) -> _Calls:
        rows = np.flatnonzero(chosen)
        calls = self.hashes.call[rows]
        order = np.argsort(calls, kind="stable")
        return calls[order], rows[order]

    @cached_property
    def _full(self) -> Words:
        return np.sort(self.hashes.full[self.is_op])

    def does(self, other: StepView) -> Mask:
        """Which rows of another run's step have an operator here with their calls and results."""
        return are_among(other.hashes.full, self._full)

    def makes(self, calls: Words) -> Mask:
        """Which calls an operator makes here."""
        return are_among(calls, self._ops[0])

    def calls(self, call: np.uint64) -> list[Event]:
        """The operators whose calls have a hash, in order."""
        return self._with(call, self._ops)

    def alike(self, full: np.uint64) -> list[Event]:
        """The operators and copies whose calls and results have a hash together, in order."""
        return self.where((self.hashes.full == full) & (self.is_op | self.is_copy))

    def views(self, call: np.uint64) -> list[Event]:
        """The views whose calls have a hash, in order."""
        return self._with(call, self._views)

    def shown(self, value: int) -> Event | None:
        """The first view that showed a value."""
        row = self._shown.get(value)
        return None if row is None else self.event(row)

    @cached_property
    def _shown(self) -> dict[int, int]:
        chosen = self.is_view[self.write_rows]
        rows = self.write_rows[chosen]
        pairs = zip(self.arrays.write_value[chosen].tolist()[::-1], rows.tolist()[::-1], strict=True)
        return dict(pairs)

    def _with(self, call: np.uint64, among: _Calls) -> list[Event]:
        hashes, rows = among
        low = int(hashes.searchsorted(call))
        if low == len(hashes) or hashes[low] != call:
            return []
        return [self.event(row) for row in rows[low : hashes.searchsorted(call, "right")].tolist()]

    @cached_property
    def read_rows(self) -> npt.NDArray[np.int64]:
        """The row of each read."""
        return np.repeat(np.arange(len(self.arrays)), np.diff(self.arrays.read_offsets))

    @cached_property
    def write_rows(self) -> npt.NDArray[np.int64]:
        """The row of each write."""
        return np.repeat(np.arange(len(self.arrays)), np.diff(self.arrays.write_offsets))

    @cached_property
    def link_rows(self) -> npt.NDArray[np.int64]:
        """The row of the event that reads what each entry of ``writers`` wrote."""
        return np.repeat(self.read_rows, np.diff(self.arrays.writer_offsets))


class Rows(Sequence[Event]):
    """Some of a step's events in order, as objects when they are asked for."""

    def __init__(self, view: StepView, rows: npt.NDArray[np.int64]) -> None:
        self.view, self.rows = view, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place):  # type: ignore[no-untyped-def]  # as in Sequence: an event, or a list of a slice
        if isinstance(place, slice):
            return [self.view.event(row) for row in self.rows[place].tolist()]
        return self.view.event(int(self.rows[place]))

    def place(self, event: Event) -> int | None:
        """Where an event stands among these; None if it is none of them."""
        row = self.view.row(event)
        place = int(np.searchsorted(self.rows, row))
        return place if place < len(self.rows) and self.rows[place] == row else None


class Side:
    """One run. Steps are read when they are first asked for and kept.

    Args:
        steps: their numbers, in order.
        index: tells where they stand.
        load: reads one.
        assumes: inputs were not looked at (level ``op``).

    """

    def __init__(
        self,
        steps: list[int],
        index: Callable[[], list[StepInfo]],
        load: Callable[[int], StepArrays],
        *,
        assumes: bool = False,
    ) -> None:
        self.steps = steps
        self.assumes = assumes
        self._known = frozenset(steps)
        self._index, self._load = index, load
        self._hasher = Hasher()
        self._views: dict[int, StepView] = {}

    def view(self, step: int) -> StepView:
        """The events of a step; an empty view where the run has no such step."""
        found = self._views.get(step)
        if found is None:
            arrays = self._load(step) if step in self._known else StepArrays.of(StepTable(step, 0, Strings()))
            found = self._views[step] = StepView(without_nominal_reads(arrays), self._hasher)
        return found

    def views(self, last: int) -> Iterator[StepView]:
        """The steps up to ``last``, in order."""
        return (self.view(step) for step in self.steps if step <= last)

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """Of the steps that can be read: their numbers, and the first event behind each."""
        infos = self._index()
        return [info.step for info in infos], [info.first + info.events for info in infos]

    def step_of(self, index: int) -> int | None:
        """The step of the event with a number; None if the run has none."""
        steps, ends = self._places
        place = bisect_right(ends, index)
        return steps[place] if index >= 0 and place < len(steps) and steps[place] in self._known else None

    def event(self, index: int) -> Event | None:
        """The event with a number, reading its step as needed; None if the run has none."""
        step = self.step_of(index)
        if step is None:
            return None
        view = self.view(step)
        return view.event(index - view.arrays.first)

    def wrote_weakly(self, index: int, value: int) -> bool:
        """Whether the event with a number wrote a value as a weak one."""
        step = self.step_of(index)
        if step is None or value not in self.view(step).weak:
            return False
        event = self.event(index)
        return event is not None and any(w.value == value and w.flags & WEAK for w in event.writes)

    def writers(self, read: Read) -> Iterator[Event]:
        """The last writers of what was read."""
        for index in read.writers:
            event = self.event(index)
            if event is not None:
                yield event
