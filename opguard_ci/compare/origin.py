"""Where one run first computes something that the other does not know (verdict.md, rules 3-5 and 8). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ..trace.model import HIDDEN, NO_VALUE, OVER, UNREAD, WEAK, Event, Read
from .values import Side, StepView, base_name, call_key, is_empty, is_weak_spec, result

_MAX_COPIES: Final = 1000


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that comes from no operator: ``overwritten``, ``uninitialised`` or ``outside``."""

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
        self._new: dict[int, bool] = {}
        self._readers: dict[int, dict[tuple[str, int], Event]] = {}

    # Rule 3

    def contra(self, event: Event) -> bool:
        """Whether the other run made the same call in this step, and never with this result."""
        if event.kind != "op" or not event.writes:
            return False
        if any(read.value == NO_VALUE and not read.flags & UNREAD and not is_empty(read.spec) for read in event.reads):
            return False
        likes = self.other.view(event.step).results.get(call_key(event))
        return bool(likes) and all(result(like) != result(event) for like in likes or ())

    def new(self, event: Event) -> bool:
        """Whether the event made something that the other run does not have in this step."""
        found = self._new.get(event.index)
        if found is None:
            found = self._new[event.index] = event.kind == "op" and self._is_new(event)
        return found

    def _is_new(self, event: Event) -> bool:
        view = self.other.view(event.step)
        base = base_name(event.op)
        for write in event.writes:
            if write.flags & HIDDEN and base not in view.hidden:
                return True
            if write.value == NO_VALUE or is_empty(write.spec):
                continue
            if write.value not in view.known:
                return True
            if write.flags & WEAK and write.value not in view.made.get(base, ()):
                return True
        return self.contra(event)

    # Rule 4

    def status(self, event: Event, read: Read) -> tuple[str, list[Event], Leaf | None]:
        """(``clean``, ``dirty`` or ``leaf``, the new producers, the leaf) of a read of an event."""
        if read.flags & UNREAD or read.value == NO_VALUE or is_empty(read.spec):
            return "clean", [], None
        view = self.other.view(event.step)
        known = read.value in view.known
        if known and not self._weak(view, event, read):
            return "clean", [], None
        producers, allocated, over = self._behind(read)
        if not known and over:
            return "leaf", [], Leaf("overwritten", read)
        dirty = [producer for producer in producers if self.new(producer)]
        if dirty:
            return "dirty", dirty, None
        if known:
            return "clean", [], None
        if allocated:
            return "leaf", [], Leaf("uninitialised", read)
        if not producers:
            return "leaf", [], Leaf("outside", read)
        return "clean", [], None

    def _weak(self, view: StepView, event: Event, read: Read) -> bool:
        if is_weak_spec(read.spec) or read.value in view.weak or read.value in self.mine.view(event.step).weak:
            return True
        writes = (write for writer in self.mine.writers(read) for write in writer.writes)
        return any(write.value == read.value and write.flags & WEAK for write in writes)

    def producers(self, read: Read) -> list[Event]:
        """The operators behind a read, seen through copies."""
        return self._behind(read)[0]

    def _behind(self, read: Read) -> tuple[list[Event], bool, bool]:
        """The operators behind a read, seen through copies; whether unwritten memory is among what was read, and
        whether somebody unseen changed it on the way.
        """
        found: dict[int, Event] = {}
        allocated, over = False, False
        queue, seen = [read], 0
        while queue and seen < _MAX_COPIES:
            seen += 1
            current = queue.pop()
            over = over or bool(current.flags & OVER)
            for writer in self.mine.writers(current):
                if writer.kind == "alloc":
                    allocated = True
                elif writer.kind == "copy":
                    queue += [source for source in writer.reads if not source.flags & UNREAD]
                else:
                    found[writer.index] = writer
        return list(found.values()), allocated, over

    # Rule 5

    def origin(self, event: Event) -> Origin | None:
        """The event as an origin, or None if it only passes on what an earlier one did."""
        if event.kind != "op":
            return None
        leaf = None
        contra = self.contra(event)
        for read in event.reads:
            status, _, found = self.status(event, read)
            if status == "dirty" and not contra:
                return None
            leaf = leaf or found
        if leaf is not None and not contra:
            return Origin(event, leaf, False) if self.first_reader(event.step, leaf).index == event.index else None
        return Origin(event, None, contra) if self.new(event) else None

    def first_reader(self, step: int, leaf: Leaf) -> Event:
        """The earliest operator of a step that read a leaf's value, copies and views aside."""
        return self._leaf_readers(step)[(leaf.kind, leaf.read.value)]

    def _leaf_readers(self, step: int) -> dict[tuple[str, int], Event]:
        readers = self._readers.get(step)
        if readers is None:
            readers = self._readers[step] = {}
            for event in self.mine.view(step).events:
                for read in event.reads if event.kind == "op" else ():
                    _, _, found = self.status(event, read)
                    if found is not None:
                        readers.setdefault((found.kind, found.read.value), event)
        return readers

    def all_in(self, step: int) -> Iterator[Origin]:
        """All origins of a step, in order."""
        for event in self.mine.view(step).events:
            found = self.origin(event)
            if found is not None:
                yield found

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
            if status == "clean" and event.kind != "op":  # the sink itself: its value exists, but not here
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
        reader = self._leaf_readers(event.step).get((leaf.kind, leaf.read.value), event)
        found.setdefault(reader.index, Origin(reader, leaf, False))
