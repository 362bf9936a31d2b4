"""Finds events again: their places in a trace, which are the same in a repeat of the run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from opguard_ci.trace.model import KINDS, Event
from opguard_ci.trace.reader import Trace

_CONTRACT = KINDS.index("contract")
_UNCOUNTED = (KINDS.index("view"), KINDS.index("alloc"), KINDS.index("collective"))


@dataclass(frozen=True, slots=True)
class Place:
    """An event and the place that it has in every run that does the same (see ``capture.keep``).

    ``lane`` None: a contract value, the ``number``-th of the run; else the ``number``-th call of that lane, views,
    allocations and collectives aside.
    """

    lane: int | None
    number: int
    event: Event


def places(trace: Trace, indexes: Collection[int], rank: int = 0) -> dict[int, Place]:
    """The places of events of a rank, by their number in the trace."""
    found: dict[int, Place] = {}
    counted: Counter[int | None] = Counter()
    last = max(indexes, default=-1)
    for table in trace.steps(rank):
        for row, kind in enumerate(table.kind):
            if kind in _UNCOUNTED:
                continue
            lane = None if kind == _CONTRACT else table.lane[row]
            if table.first + row in indexes:
                found[table.first + row] = Place(lane, counted[lane], table.event(row))
            counted[lane] += 1
        if table.first + len(table) > last:
            break
    return found


def at_places(
    trace: Trace, wanted: Collection[tuple[int | None, int]], rank: int = 0
) -> dict[tuple[int | None, int], Event]:
    """The events of another run at places of a rank, given as lane and number; those that it came to."""
    found = {}
    counted: Counter[int | None] = Counter()
    for table in trace.steps(rank):
        for row, kind in enumerate(table.kind):
            if kind in _UNCOUNTED:
                continue
            lane = None if kind == _CONTRACT else table.lane[row]
            if (lane, counted[lane]) in wanted:
                found[lane, counted[lane]] = table.event(row)
            counted[lane] += 1
    return found


def contract_value(trace: Trace, step: int, name: str, rank: int = 0) -> Event | None:
    """The contract value of this name in a step of a rank."""
    if all(info.step != step for info in trace.index(rank)):
        return None
    table = trace.step(step, rank)
    rows = (row for row, kind in enumerate(table.kind) if kind == _CONTRACT)
    return next((table.event(row) for row in rows if table.strings.args.get(table.args[row]) == name), None)


def does_the_same(event: Event, other: Event) -> bool:
    """Whether two events at one place are the same call on the same values with the same results."""
    return _facts(event) == _facts(other)


def _facts(event: Event) -> tuple[object, ...]:
    return (
        event.kind,
        event.op,
        event.args,
        [(read.value, read.spec) for read in event.reads],
        [(write.value, write.spec, write.slot) for write in event.writes],
        event.draw,
    )
