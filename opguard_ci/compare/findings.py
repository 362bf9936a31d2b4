"""What one run shows by itself: memory written behind the recorder's back, read-only arguments that were changed.
Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

from ..trace.model import HIDDEN, OVER, Event, StepTable
from .cause import Cause, hidden_argument, hidden_write, is_overwritten
from .describe import describe_event
from .traces import TraceLike, side_of
from .values import Side, base_name

_BY_DESIGN: Final = frozenset(
    [
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "_batch_norm_impl_index",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
        "batch_norm_update_stats",
    ]
)
"""Operators of torch that update running statistics which their schema calls read-only."""
_MAX: Final = 20


def single_run_findings(trace: TraceLike) -> list[dict[str, Any]]:
    """The findings of one trace (see ``findings_of``); none at level ``contract``, which sees no operator."""
    if trace.manifest.get("level") == "contract":
        return []
    return findings_of(side_of(trace))


def findings_of(side: Side) -> list[dict[str, Any]]:
    """The findings of a run, one per operator and module, in order."""
    found: dict[tuple[str, str, str | None], dict[str, Any]] = {}
    for step in side.steps:
        table = side.table(step)
        for row in _suspicious(table):
            event = table.event(row)
            cause = _finding(event)
            if cause is not None and len(found) < _MAX:
                found.setdefault((cause.cause, event.op, event.module), describe_event(cause))
    return list(found.values())


def _suspicious(table: StepTable) -> list[int]:
    """The rows of events with a flag that may be a finding, without making objects of the others."""
    reads = [place for place, flags in enumerate(table.read_flags) if flags & OVER]
    writes = [place for place, flags in enumerate(table.write_flags) if flags & HIDDEN]
    rows = {bisect_right(table.read_offsets, place) - 1 for place in reads}
    return sorted(rows | {bisect_right(table.write_offsets, place) - 1 for place in writes})


def _finding(event: Event) -> Cause | None:
    if event.kind != "op":
        return None
    if hidden_write(event) and base_name(event.op) not in _BY_DESIGN:
        return Cause(
            "hidden-mutation", event, detail=f"{hidden_argument(event)} is read-only by its schema but was changed"
        )
    if is_overwritten(event):
        return Cause("overwritten", event, detail="read bytes that no recorded operator wrote")
    return None
