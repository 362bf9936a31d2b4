"""One side of a comparison: its events and the look-ups that the rules of origin ask of it. Pure.

Look-ups are scoped to a step: across steps, stale and constant values exist everywhere (verdict.md, rule 2).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from ..trace.model import HIDDEN, NO_VALUE, UNREAD, WEAK, Event, Read, StepTable, Write

_EMPTY: Final = re.compile(r"[\[,]0[,\]]")
_SIZES: Final = re.compile(r"\[([\d,]*)\]")
_INTEGERS: Final = ("bool[", "int", "uint")

Key = tuple[object, ...]


@cache
def base_name(op: str) -> str:
    """``aten._foreach_add_.Scalar`` -> ``add``: what an operator computes, whatever its form."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.removeprefix("_foreach_").rstrip("_")


def is_empty(spec: str) -> bool:
    """Whether a tensor of this spec has no element."""
    return _EMPTY.search(spec) is not None


def num_elements(spec: str) -> int:
    """The number of elements of a tensor of this spec."""
    found = _SIZES.search(spec)
    count = 1
    for size in found.group(1).split(",") if found and found.group(1) else ():
        count *= int(size)
    return count


def is_weak_spec(spec: str) -> bool:
    """Whether any value of this spec proves nothing, being tiny or integer."""
    return spec.startswith(_INTEGERS) or num_elements(spec) <= 4


def read_values(event: Event) -> tuple[int, ...]:
    """The values that an operator read; 0 for arguments it only overwrote."""
    return tuple(NO_VALUE if read.flags & UNREAD else read.value for read in event.reads)


def written(event: Event) -> tuple[Write, ...]:
    """What an operator wrote openly."""
    if not any(write.flags & HIDDEN for write in event.writes):
        return event.writes
    return tuple(write for write in event.writes if not write.flags & HIDDEN)


def call_key(event: Event) -> Key:
    """What determines the result of an operator: itself, its arguments, inputs, output shapes and generator state."""
    return (
        event.op,
        event.args,
        read_values(event),
        tuple(read.spec for read in event.reads),
        tuple((write.slot, write.spec) for write in written(event)),
        event.draw.before if event.draw is not None else 0,
    )


def result(event: Event) -> tuple[int, ...]:
    """The values that an operator wrote openly."""
    return tuple(write.value for write in written(event))


def full_key(event: Event) -> Key:
    """A call together with its result: equal keys did the same."""
    return (call_key(event), result(event))


@dataclass(slots=True)
class StepView:
    """The events of one step with what occurs in them."""

    step: int
    events: list[Event]
    known: set[int] = field(default_factory=set)
    made: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    hidden: set[str] = field(default_factory=set)
    results: dict[Key, list[Event]] = field(default_factory=lambda: defaultdict(list))
    weak: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, step: int, events: list[Event]) -> StepView:
        """Index the events of a step."""
        view = cls(step, events)
        for event in events:
            view.known.update(read.value for read in event.reads)
            base = base_name(event.op)
            for write in event.writes:
                view.known.add(write.value)
                view.made[base].add(write.value)
                if write.flags & HIDDEN:
                    view.hidden.add(base)
                if write.flags & WEAK:
                    view.weak.add(write.value)
            if event.kind == "op":
                view.results[call_key(event)].append(event)
        view.known.discard(NO_VALUE)
        return view


class Side:
    """One run. Steps are read when they are first asked for and kept."""

    def __init__(self, steps: list[int], load: Callable[[int], StepTable]) -> None:
        self.steps = steps
        self._load = load
        self._tables: dict[int, StepTable] = {}
        self._views: dict[int, StepView] = {}
        self._by_index: dict[int, Event] = {}

    def table(self, step: int) -> StepTable:
        """The columns of a step that the run has."""
        found = self._tables.get(step)
        if found is None:
            found = self._tables[step] = self._load(step)
        return found

    def view(self, step: int) -> StepView:
        """The events of a step; an empty view where the run has no such step."""
        found = self._views.get(step)
        if found is None:
            events = list(self.table(step).events()) if step in self.steps else []
            found = self._views[step] = StepView.of(step, events)
            self._by_index.update((event.index, event) for event in events)
        return found

    def event(self, index: int) -> Event | None:
        """The event with a number, reading earlier steps as needed; None if the run has none."""
        found = self._by_index.get(index)
        if found is None:
            for step in reversed(self.steps):
                if step not in self._views:
                    self.view(step)
                    found = self._by_index.get(index)
                    if found is not None:
                        break
        return found

    def writers(self, read: Read) -> Iterator[Event]:
        """The last writers of what was read."""
        for index in read.writers:
            event = self.event(index)
            if event is not None:
                yield event
