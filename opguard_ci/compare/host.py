"""Rule 12: departures that went on through Python, as a number or as foreign memory. Pure."""

from __future__ import annotations

from ..trace.model import WEAK, Event
from .align import place
from .cause import Cause
from .origin import Origin
from .pairs import Pairs
from .values import read_values


def through_host(pairs: Pairs, cause: Cause) -> Origin | None:
    """An earlier departure that reached Python and may have come back as what ``cause`` is about."""
    for step in pairs.candidate.steps:
        if step > cause.event.step:
            break
        view = pairs.candidate.view(step)
        sinks = [e for e in view.where(view.is_host) if _is_before(pairs, e, cause) and _is_handed_over(pairs, e)]
        found = next(iter(pairs.forward.behind(sinks)), None)
        if found is not None:
            return found
    return _through_memory(pairs, cause)


def _is_before(pairs: Pairs, event: Event, cause: Cause) -> bool:
    """Whether an event of the candidate comes before what a cause is about, in the order of that one's run."""
    mine = event if cause.side == "candidate" else pairs.like(event)
    return mine is not None and mine.index < cause.event.index


def _is_handed_over(pairs: Pairs, event: Event) -> bool:
    """Whether Python got another number than the reference's got at the same place, or at one that was moved."""
    like = pairs.like(event)
    if like is not None:
        return read_values(like) != read_values(event)
    view = pairs.reference.view(event.step)
    likes = [e for e in view.where(view.is_host) if place(e) == place(event)]
    moved = [e for e in likes if pairs.like_of_reference(e) is None]
    return bool(moved) and all(read_values(e) != read_values(event) for e in moved)


def _through_memory(pairs: Pairs, cause: Cause) -> Origin | None:
    """A departure whose result no operator reads: it may have gone through numpy and come back without a producer."""
    event = cause.event
    if cause.cause not in ("data", "state") or cause.operand is None:
        return None
    if pairs.forward.producers(event.reads[cause.operand]):
        return None
    events = pairs.candidate.view(event.step).events
    read = {writer for e in events for r in e.reads for writer in r.writers}
    for mine in events:
        if mine.index >= event.index:
            break
        if mine.index in read or not mine.computes or not any(not write.flags & WEAK for write in mine.writes):
            continue
        found = pairs.forward.origin(mine)
        if found is not None and found.leaf is None and pairs.like(mine) is not None:
            return found
    return None
