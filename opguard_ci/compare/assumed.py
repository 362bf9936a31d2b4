"""Inputs that nobody looked at (level ``op``): what they leave open, and where a foreign write is found late. Pure."""

from __future__ import annotations

from typing import Final

from ..trace.model import ASSUMED, OVER, Event, Read
from .arguments import argument_name
from .side import Side
from .values import base_name, call_key, result

_OF_THE_STORAGE: Final = frozenset(("as_strided", "_reshape_alias", "set", "resize", "resize_as"))
"""Views that may show more than their input does."""


def is_assumed(event: Event) -> bool:
    """Whether an input of an operator was taken from what was last written there."""
    return any(read.flags & ASSUMED for read in event.reads)


def may_be_same_inputs(event: Event, other: Event) -> bool:
    """Whether two calls may have read the same, though one found overwritten what the other did not look at."""
    return len(event.reads) == len(other.reads) and all(
        mine.spec == its.spec
        and (
            mine.value == its.value
            or bool(mine.flags & OVER and its.flags & ASSUMED)
            or bool(its.flags & OVER and mine.flags & ASSUMED)
        )
        for mine, its in zip(event.reads, other.reads, strict=True)
    )


def found_late(side: Side, event: Event) -> str | None:
    """That the bytes of an operand, at which nobody looked, were later in the step found changed by nobody we saw."""
    open_reads = {number: read for number, read in enumerate(event.reads) if read.flags & ASSUMED and read.writers}
    view = side.view(event.step)
    for row in range(view.row(event) + 1, len(view.arrays)) if open_reads else ():
        later = view.event(row)
        for read in later.reads:
            if read.flags & ASSUMED:
                continue
            for number, mine in list(open_reads.items()):
                if mine.writers != read.writers:
                    continue
                if read.flags & OVER:
                    return _words(event, number, later)
                if read.value == mine.value:  # still the same: it was not changed before
                    del open_reads[number]
    return None


def _words(event: Event, number: int, later: Event) -> str:
    name = f"{argument_name(event.args, number)} {event.reads[number].spec}"
    where = f"the contract ({later.args})" if later.kind == "contract" else later.op
    return (
        f"{name} changed since it was last written, by no recorded operator; found late, by {where}: level op does not "
        "look at inputs"
    )


def is_torn(mine: Side, other: Side, step: int, read: Read) -> bool:
    """Whether a value was shown by a view whose like, of the same memory as far as anybody looked, shows another."""
    view, theirs = mine.view(step), other.view(step)
    value, seen = read.value, set()
    while value not in seen and not theirs.knows(value):
        seen.add(value)
        shown = view.shown(value)
        if shown is None or not shown.reads or base_name(shown.op) in _OF_THE_STORAGE:
            return False
        likes = [like for like in theirs.views(view.hashes.call[view.row(shown)]) if call_key(like) == call_key(shown)]
        if likes and is_assumed(shown) and all(result(like) != result(shown) for like in likes):
            return True
        value = shown.reads[0].value
    return False
