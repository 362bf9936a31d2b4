"""The random draws of two runs, laid side by side: which draw was inserted, left out or made from another state.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

from ..trace.model import Event
from .values import Key, base_name, result


@dataclass(frozen=True, slots=True)
class DrawChange:
    """The first draw that differs. ``event`` belongs to ``side``; ``position`` is where the candidate departs."""

    what: str  # inserted, missing, arguments, state
    event: Event
    side: str
    other: Event | None
    position: int


def draws(events: Iterable[Event]) -> list[Event]:
    """The events that moved a generator, in order."""
    return [event for event in events if event.draw is not None and event.draw.before != event.draw.after]


def same_draws(reference: list[Event], candidate: list[Event]) -> bool:
    """Whether both runs made the same draws, through whatever generator objects."""
    return Counter(map(_full, reference)) == Counter(map(_full, candidate))


def _full(event: Event) -> Key:
    assert event.draw is not None
    return (event.draw.before, base_name(event.op), event.args, result(event))


def _place(event: Event) -> Key:
    return (event.step, base_name(event.op), event.args, tuple(write.spec for write in event.writes))


def first_change(reference: list[Event], candidate: list[Event]) -> DrawChange | None:
    """The first difference between two sequences of draws; None if there is none."""
    end = candidate[-1].index + 1 if candidate else 0
    matcher = SequenceMatcher(None, [_place(e) for e in reference], [_place(e) for e in candidate], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            for mine, other in zip(candidate[b0:b1], reference[a0:a1], strict=True):
                assert mine.draw is not None and other.draw is not None
                if mine.draw.before != other.draw.before:
                    return DrawChange("state", mine, "candidate", other, mine.index)
            continue
        at = candidate[b0].index if b0 < len(candidate) else end
        if tag == "insert":
            return DrawChange("inserted", candidate[b0], "candidate", None, at)
        if tag == "delete":
            return DrawChange("missing", reference[a0], "reference", None, at)
        mine, other = candidate[b0], reference[a0]
        same = mine.draw is not None and other.draw is not None and mine.draw.before == other.draw.before
        return DrawChange("arguments" if same else "inserted", mine, "candidate", other, at)
    return None
