"""What one run shows by itself: memory written behind the recorder's back, read-only arguments that were changed.
Pure.
"""

from __future__ import annotations

from typing import Any, Final

from ..trace.model import Event
from .cause import Cause, hidden_argument, hidden_write, is_overwritten
from .describe import describe_event
from .side import Side
from .traces import TraceLike, side_of
from .values import base_name

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
    return findings_of(side_of(trace), trace.manifest)


def findings_of(side: Side, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of a run, one per operator and module, in order. Steps whose entry in the manifest says which of
    their events are flagged are not read for the others.
    """
    found: dict[tuple[str, str, str | None], dict[str, Any]] = {}
    flagged = {entry["step"]: entry.get("flagged") for entry in manifest["steps"]}
    for step in side.steps:
        for event in _suspicious(side, step, flagged[step]):
            cause = _finding(event)
            if cause is not None and len(found) < _MAX:
                found.setdefault((cause.cause, event.op, event.module), describe_event(cause))
    return list(found.values())


def _suspicious(side: Side, step: int, flagged: list[int] | None) -> list[Event]:
    if flagged is not None:
        events = (side.event(index) for index in flagged)
        return [event for event in events if event is not None and event.step == step and event.computes]
    view = side.view(step)
    return view.where(view.is_op & (view.is_over | view.is_hiding))


def _finding(event: Event) -> Cause | None:
    if hidden_write(event) and base_name(event.op) not in _BY_DESIGN:
        return Cause(
            "hidden-mutation", event, detail=f"{hidden_argument(event)} is read-only by its schema but was changed"
        )
    if is_overwritten(event):
        return Cause("overwritten", event, detail="read bytes that no recorded operator wrote")
    return None
