"""Where one run first computes something that the other does not know (verdict.md, rules 3-5 and 8). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ..trace.model import HIDDEN, NO_VALUE, OVER, UNREAD, WEAK, Event, Read
from .assumed import is_torn
from .hashes import Words, are_among
from .side import Mask, Side, StepView
from .values import base_name, call_key, is_empty, is_weak_spec, num_elements, result

Places = npt.NDArray[np.int64]

_MAX_COPIES: Final = 1000


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that comes from no operator: ``overwritten``, ``torn`` (overwritten in one of the runs, and none looked),
    ``uninitialised`` or ``outside``.
    """

    kind: str
    read: Read


@dataclass(frozen=True, slots=True)
class Origin:
    """An event at which a run departs from the other, and the leaf that it read, if that is why."""

    event: Event
    leaf: Leaf | None
    contra: bool

    @property
    def index(self) -> int:
        """The event's number."""
        return self.event.index


class Origins:
    """The departures of ``mine`` from ``other``."""

    def __init__(self, mine: Side, other: Side) -> None:
        self.mine, self.other = mine, other
        self._readers: dict[int, dict[tuple[str, int], tuple[Leaf, Event]]] = {}
        self._unlike: dict[int, Mask] = {}
        self._new: dict[int, Mask] = {}
        self._suspects: dict[int, Mask] = {}

    # Rule 3

    def contra(self, event: Event) -> bool:
        """Whether the other run made the same call in this step, and never with this result."""
        if not event.computes or not event.writes:
            return False
        if any(read.value == NO_VALUE and not read.flags & UNREAD and not is_empty(read.spec) for read in event.reads):
            return False
        likes = self.likes(event)
        return bool(likes) and all(result(like) != result(event) for like in likes)

    def likes(self, event: Event) -> list[Event]:
        """What the other run made of the same call in this step."""
        view = self.mine.view(event.step)
        key = call_key(event)
        found = self.other.view(event.step).calls(view.hashes.call[view.row(event)])
        return [like for like in found if call_key(like) == key]

    def new(self, event: Event) -> bool:
        """Whether the event made something that the other run does not have in this step."""
        return bool(self._new_rows(event.step)[self.mine.view(event.step).row(event)])

    def _is_new(self, event: Event) -> bool:
        view = self.other.view(event.step)
        base = base_name(event.op)
        for write in event.writes:
            if write.flags & HIDDEN and base not in view.hidden:
                return True
            if write.value == NO_VALUE or is_empty(write.spec):
                continue
            if not view.knows(write.value):
                return True
            if write.flags & WEAK and write.value not in view.made(base) and not self._is_confirmed(event, write.value):
                return True
        return self.contra(event)

    def _is_confirmed(self, event: Event, value: int) -> bool:
        """Whether the other run makes the same of a value that an event made, and that is no weak value again."""
        view = self.mine.view(event.step)
        rows = np.unique(view.read_rows[view.arrays.read_value == value])
        done = view.is_op[rows] & ~self._unlike_rows(event.step)[rows]
        return any(
            any(read.value == value and event.index in read.writers for read in reader.reads)
            and any(not write.flags & WEAK for write in reader.writes)
            for reader in map(view.event, rows[done].tolist())
        )

    # Rule 4

    def status(self, event: Event, read: Read) -> tuple[str, list[Event], Leaf | None]:
        """(``clean``, ``dirty`` or ``leaf``, the new producers, the leaf) of a read of an event."""
        if read.flags & UNREAD or read.value == NO_VALUE or is_empty(read.spec):
            return "clean", [], None
        view = self.other.view(event.step)
        known = view.knows(read.value)
        proves = known and not self._weak(view, event, read)
        if proves and not self._is_intruded(event.step):
            return "clean", [], None
        producers, allocated, over = self._behind(read, event.step)
        if over and (not known or self._is_replaced(event, read, over)):
            return "leaf", [], Leaf(over, read)
        dirty = [producer for producer in producers if self.new(producer)]
        if proves:
            dirty = [producer for producer in dirty if _hides(producer, read.value)]
        if dirty:
            return "dirty", dirty, None
        if known:
            return "clean", [], None
        if allocated:
            return "leaf", [], Leaf("uninitialised", read)
        if not producers:
            return "leaf", [], Leaf("outside", read)
        return "clean", [], None

    def _is_intruded(self, step: int) -> bool:
        """Whether memory was written in a step behind our back: that a value is known does not say that it belongs
        there.
        """
        mine = self.mine.view(step)
        return bool(mine.is_over.any()) or bool(mine.hidden - self.other.view(step).hidden)

    def _is_replaced(self, event: Event, read: Read, over: str) -> bool:
        """Whether somebody unseen put a value that the other run has where the other run did not have it put."""
        if over != "overwritten" or read.value in self.other.view(event.step).put_unseen:
            return False
        return not event.computes or self.new(event)

    def _weak(self, view: StepView, event: Event, read: Read) -> bool:
        if is_weak_spec(read.spec) or read.value in view.weak or read.value in self.mine.view(event.step).weak:
            return True
        return any(self.mine.wrote_weakly(index, read.value) for index in read.writers)

    def producers(self, read: Read) -> list[Event]:
        """The operators behind a read, seen through copies."""
        return self._behind(read)[0]

    def _behind(self, read: Read, step: int | None = None) -> tuple[list[Event], bool, str]:
        """The operators behind a read, seen through copies; whether unwritten memory is among what was read, and the
        kind of leaf if somebody unseen changed it on the way, as far as can be told in a step.
        """
        found: dict[int, Event] = {}
        allocated, over = False, ""
        queue, seen = [read], 0
        while queue and seen < _MAX_COPIES:
            seen += 1
            current = queue.pop()
            if current.flags & OVER:
                over = "overwritten"
            elif not over and step is not None and self.mine.assumes and is_torn(self.mine, self.other, step, current):
                over = "torn"
            for writer in self.mine.writers(current):
                if writer.kind == "alloc":
                    allocated = allocated or not self._may_be_covered(current)
                elif writer.kind == "copy":
                    queue += [source for source in writer.reads if not source.flags & UNREAD]
                else:
                    found[writer.index] = writer
        return list(found.values()), allocated, over

    def _may_be_covered(self, read: Read) -> bool:
        """Whether as much was written to allocated memory since as is read: strided writes do not show what is left."""
        total = 0
        for writer in self.mine.writers(read):
            if writer.kind != "alloc":
                total += max((num_elements(write.spec) for write in writer.writes), default=0)
        return total >= num_elements(read.spec)

    # Rule 5

    def origin(self, event: Event) -> Origin | None:
        """The event as an origin, or None if it only passes on what an earlier one did."""
        if not event.computes:
            return None
        leaf = None
        contra = self.contra(event)
        for read in event.reads:
            status, _, found = self.status(event, read)
            if status == "dirty" and not contra:
                return None
            leaf = leaf or found
        if leaf is not None and not contra:
            return Origin(event, leaf, False) if self.first_reader(event, leaf).index == event.index else None
        return Origin(event, None, contra) if self.new(event) else None

    def first_reader(self, event: Event, leaf: Leaf) -> Event:
        """The earliest operator of a step that read a leaf's value as an event does, copies and views aside."""
        return self._leaf_readers(event.step).get((leaf.kind, leaf.read.value), (leaf, event))[1]

    def leaf_readers(self, step: int) -> Iterable[tuple[Leaf, Event]]:
        """The leaves that operators of a step read, in order, each with its earliest reader."""
        return self._leaf_readers(step).values()

    def _leaf_readers(self, step: int) -> dict[tuple[str, int], tuple[Leaf, Event]]:
        readers = self._readers.get(step)
        if readers is None:
            readers = self._readers[step] = {}
            for event in self.mine.view(step).where(self.suspects(step)):
                for read in event.reads:
                    _, _, found = self.status(event, read)
                    if found is not None:
                        readers.setdefault((found.kind, found.read.value), (found, event))
        return readers

    def all_in(self, step: int) -> Iterator[Origin]:
        """All origins of a step, in order."""
        for event in self.mine.view(step).where(self.suspects(step)):
            found = self.origin(event)
            if found is not None:
                yield found

    # Rules 3 to 5 for a whole step: most operators need no closer look

    def suspects(self, step: int) -> Mask:
        """Which rows of a step may be origins: operators that are new, or that read what the other run does not know.

        Those that the other run has with the same inputs and outputs are neither.
        """
        found = self._suspects.get(step)
        if found is None:
            view, unlike = self.mine.view(step), self._unlike_rows(step)
            values, rows = view.arrays.read_value, view.read_rows
            found = self._new_rows(step).copy()
            found[self._unknown(step, values, rows, unlike[rows] & (values != NO_VALUE))] = True
            self._suspects[step] = found
        return found

    def _unknown(self, step: int, values: Words, rows: Places, chosen: Mask) -> Places:
        """The rows of some chosen reads or writes whose values the other run does not know."""
        return rows[chosen][~are_among(values[chosen], self.other.view(step).known)]

    def _unlike_rows(self, step: int) -> Mask:
        """Which rows are operators that the other run does not have with the same inputs and outputs."""
        found = self._unlike.get(step)
        if found is None:
            mine = self.mine.view(step)
            found = self._unlike[step] = mine.is_op & (~self.other.view(step).does(mine) | mine.is_hiding)
        return found

    def _new_rows(self, step: int) -> Mask:
        """Which rows are new operators."""
        found = self._new.get(step)
        if found is None:
            view, other = self.mine.view(step), self.other.view(step)
            unlike = self._unlike_rows(step)
            rows = view.write_rows
            found = np.zeros(len(view.arrays), np.bool_)
            found[self._unknown(step, view.arrays.write_value, rows, unlike[rows] & view.holds_something)] = True
            rest = np.flatnonzero(unlike & ~found)
            closer = view.is_hiding[rest] | view.is_weak[rest] | other.makes(view.hashes.call[rest])
            for row in rest[closer].tolist():
                found[row] = self._is_new(view.event(row))
            self._new[step] = found
        return found

    # Rule 8

    def behind(self, sinks: Iterable[Event]) -> list[Origin]:
        """The origins from which the sinks' values come, earliest first."""
        found: dict[int, Origin] = {}
        queue = [(sink, read) for sink in sinks for read in sink.reads]
        visited: set[int] = set()
        while queue:
            event, read = queue.pop()
            status, dirty, leaf = self.status(event, read)
            if leaf is not None:
                self._add_leaf(found, event, leaf)
            if status == "clean" and not event.computes:  # the sink itself: its value exists, but not here
                dirty = [producer for producer in self.producers(read) if self.new(producer)]
            for producer in dirty:
                if producer.index in visited:
                    continue
                visited.add(producer.index)
                origin = self.origin(producer)
                if origin is not None:
                    found[origin.index] = origin
                    if origin.contra:
                        continue
                queue += [(producer, behind) for behind in producer.reads]
        return [found[index] for index in sorted(found)]

    def _add_leaf(self, found: dict[int, Origin], event: Event, leaf: Leaf) -> None:
        reader = self.first_reader(event, leaf)
        found.setdefault(reader.index, Origin(reader, leaf, False))


def _hides(event: Event, value: int) -> bool:
    return any(write.flags & HIDDEN and write.value == value for write in event.writes)
