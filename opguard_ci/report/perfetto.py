"""Two runs for Perfetto (ui.perfetto.dev): Chrome's trace format, in logical time. Pure.

Each run is a process and each lane a thread. A moment, ten microseconds long, is an operator of either run; operators
that stand at the same place have the same moment, so that a gap shows what one run lacks. Steps, phases and modules lie
around them. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.report.clean import clean

if TYPE_CHECKING:
    from opguard_ci.compare.timeline import Timeline
    from opguard_ci.trace.model import Event

_MOMENT: Final = 10
_SIDES: Final = ("reference", "candidate")
_LEVELS: Final[tuple[Callable[[Event], str | None], ...]] = (
    lambda event: "before step 0" if event.step < 0 else f"step {event.step}",
    lambda event: event.phase,
    lambda event: event.module,
)
"""What lies around an operator, from the outside in; each is drawn a microsecond within the one before."""

_Placed = tuple[int, "Event", str]
"""A moment, what ran at it, and how it differs from the other run."""


def perfetto(document: Mapping[str, Any], timelines: Sequence[Timeline]) -> str:
    """The file: ``document`` is that of ``compare``, ``timelines`` are those of its ranks."""
    rows = [row for rank, one in enumerate(timelines) for row in _rank(document, one, rank, len(timelines))]
    rows.sort(key=lambda row: row.get("ts", -1))  # names first, then by time; what lies around others stays before them
    other = {"verdict": document["verdict"], "target": clean(document.get("target") or "", 400), "time": "logical"}
    # A row per line, so that the file can be read and compared as text, too.
    listed = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return f'{{"otherData":{json.dumps(other)},"displayTimeUnit":"ns","traceEvents":[\n{listed}\n]}}\n'


def _rank(document: Mapping[str, Any], timeline: Timeline, rank: int, num_ranks: int) -> Iterator[dict[str, Any]]:
    first = document.get("first_divergence")
    if first is not None and (first.get("rank") or 0) != rank:
        first = None
    moments = [moment for _, each in timeline.steps for moment in each]
    marked: dict[str, dict[str, Any]] = {}
    for number, side in enumerate(_SIDES):
        process = 1 + 2 * rank + number
        placed = [
            (at, event, moment.state)
            for at, moment in enumerate(moments)
            if (event := getattr(moment, side)) is not None
        ]
        yield _named("process_name", process, f"{side}, rank {rank}" if num_ranks > 1 else side)
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
        for lane in sorted({event.lane for _, event, _ in placed}):
            yield _named("thread_name", process, f"lane {lane}", lane)
            yield from _lane(process, lane, [one for one in placed if one[1].lane == lane])
        here = next((one for one in placed if first and one[1].index == _event_of(first, side)), None)
        if first is not None and here is not None:
            at = {"pid": process, "tid": here[1].lane, "ts": here[0] * _MOMENT + len(_LEVELS) + 1}
            marked[side] = at
            yield {"ph": "i", "name": _said(first), "cat": "divergence", "s": "p", **at}
    if len(marked) == len(_SIDES):
        flow = {"name": "first divergence", "cat": "divergence", "id": 1 + rank}
        begin, end = sorted((marked[side] for side in _SIDES), key=lambda at: at["ts"])  # arrows do not go back in time
        yield {"ph": "s", **flow, **begin}
        yield {"ph": "f", "bp": "e", **flow, **end}


def _event_of(first: Mapping[str, Any], side: str) -> Any:
    return (first.get("events") or {}).get(side)


def _said(first: Mapping[str, Any]) -> str:
    return clean(f"first divergence: {first['op']}: {first['cause']}: {first['detail']}", 400)


def _named(what: str, process: int, name: str, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _lane(process: int, lane: int, placed: Sequence[_Placed], level: int = 0) -> Iterator[dict[str, Any]]:
    """The slices of a thread, those around others before them."""
    where = {"ph": "X", "pid": process, "tid": lane}
    if level == len(_LEVELS):
        for at, event, state in placed:
            span = {"ts": at * _MOMENT + level, "dur": _MOMENT - 2 * level}
            yield {**where, "name": clean(event.op, 120) or "?", "cat": state, **span, "args": _facts(event, state)}
        return
    for name, group in groupby(placed, key=lambda one: _LEVELS[level](one[1])):
        inside = list(group)
        if name is not None:
            begin, end = inside[0][0] * _MOMENT + level, (inside[-1][0] + 1) * _MOMENT - level
            yield {**where, "name": clean(name, 200) or "?", "cat": "place", "ts": begin, "dur": end - begin}
        yield from _lane(process, lane, inside, level + 1)


def _value(value: int) -> str:
    return f"{value:016x}" if value else "-"


def _facts(event: Event, state: str) -> dict[str, Any]:
    frame = (event.stack or "").split("\n")[0].split("\t")
    facts = {
        "event": event.index,
        "compared": state,
        "arguments": clean(event.args, 400),
        "inputs": " ".join(_value(read.value) for read in event.reads[:8]),
        "outputs": " ".join(_value(write.value) for write in event.writes[:8]),
        "line": clean(":".join(frame[:2]), 200),
        "source": clean(frame[3], 200) if len(frame) > 3 else "",
    }
    return {name: value for name, value in facts.items() if value != ""}
