"""What ranks tell each other as Python objects (``all_gather_object`` and its like): bytes that come from outside, and
of which nobody sees what is made. That they differ may be chance, so they take no blame; they are pointed at. Pure.
"""

from __future__ import annotations

from typing import Final

from ..trace.model import UNREAD, Event
from .describe import frames
from .judge import Judge

_BYTES: Final = "uint8["


def told(judge: Judge, step: int) -> Event | None:
    """The first collective of a step to which a rank of the candidate gave bytes that its reference does not know."""
    view = judge.candidate.view(step)
    for event in view.where(view.is_collective):
        if any(read.spec.startswith(_BYTES) and not read.flags & UNREAD for read in event.reads):
            leaves = [origin.leaf for origin in judge.forward.behind([event])]
            if any(leaf and leaf.kind == "outside" and leaf.read.spec.startswith(_BYTES) for leaf in leaves):
                return event
    return None


def sentence(rank: int, event: Event) -> str:
    """What is said of such a collective."""
    at = "".join(f" ({frame['file']}:{frame['line']})" for frame in frames(event.stack)[:1])
    return (
        f"Rank {rank} gave other bytes to {event.op} in step {event.step}{at}, as of a Python object: "
        "what becomes of them is not seen, and may be where this comes from."
    )
