"""What a departure is put down to, and what an event says about it by itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..trace.model import HIDDEN, OVER, Event
from .arguments import argument_name
from .draws import DrawChange
from .origin import Leaf


@dataclass(frozen=True, slots=True)
class Cause:
    """What a divergence is put down to, and the events that show it."""

    cause: str
    event: Event
    side: str = "candidate"
    like: Event | None = None
    """The other side's event at the same place."""
    detail: str = ""
    computes: Event | None = None
    """For ``code``: the first event of the block that made a new value."""
    before: tuple[Event, ...] = ()
    after: tuple[Event, ...] = ()
    leaf: Leaf | None = None
    operand: int | None = None
    """For ``inputs``, ``data`` and ``state``: the number of the read that differs."""
    views: str = ""
    """For ``inputs`` whose operands are views of one value: these views."""
    one_of: tuple[str, ...] = ()
    """The causes between which the traces cannot tell, the likeliest first; empty if ``cause`` is the only one."""
    draw: DrawChange | None = None
    """For ``random``: the draw that was inserted, left out or shifted."""


def hidden_write(event: Event) -> bool:
    """Whether an operator changed an argument that its schema calls read-only."""
    return any(write.flags & HIDDEN for write in event.writes)


def hidden_argument(event: Event) -> str:
    """The name of the argument that was changed in hiding."""
    number = next(~write.slot for write in event.writes if write.flags & HIDDEN)
    return argument_name(event.args, number)


def is_overwritten(event: Event) -> bool:
    """Whether an operator read bytes that changed behind our back."""
    return event.computes and any(read.flags & OVER for read in event.reads)
