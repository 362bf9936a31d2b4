"""Operands that are other parts of one tensor, or other views of it: what the views show, by their arguments. Pure."""

from __future__ import annotations

from typing import Final

from ..trace.model import Event, Read
from .arguments import split_arguments
from .side import Side, StepView
from .values import base_name

_ELSEWHERE: Final = frozenset(("set", "resize", "resize_as"))
"""What gives a tensor other memory than it had."""


def other_view(sides: tuple[Side, Side], step: int, reads: tuple[Read, Read]) -> str:
    """``slice(dim=1, start=0) -> slice(dim=1, start=1)`` if both operands are views of one value; else nothing.

    Args:
        sides: Reference and candidate.
        step: Where both operands are read.
        reads: The operand of each.

    """
    views = [side.view(step) for side in sides]
    left, right = (views_of(view, read.value) for view, read in zip(views, reads, strict=True))
    weak = views[0].weak | views[1].weak
    shared = next((value for value in left if value in right and value not in weak), None)
    if shared is None:
        return ""
    return " -> ".join(_words(chain[shared], read.value) for chain, read in zip((left, right), reads, strict=True))


def views_of(view: StepView, value: int) -> dict[int, tuple[Event, ...]]:
    """The values behind a value, from which views alone lead to it, each with these views; itself with none.

    What is given other memory leads back to nothing, as the batch that a worker sent and an empty tensor was set to.
    """
    found: dict[int, tuple[Event, ...]] = {value: ()}
    while True:
        shown = view.shown(value)
        if shown is None or base_name(shown.op) in _ELSEWHERE:
            return found
        if not shown.reads or shown.reads[0].value in found:
            return found
        found[shown.reads[0].value] = (shown, *found[value])
        value = shown.reads[0].value


def other_target(sides: tuple[Side, Side], copies: tuple[Event, Event]) -> str:
    """``slice(dim=1, start=0) -> slice(dim=1, start=3)`` if two copies write through other views; else nothing.

    What a copy writes to has no value yet, so its views are those that were taken right before it.
    """
    left, right = (_views_before(side.view(copy.step), copy) for side, copy in zip(sides, copies, strict=True))
    while left and right and _call(left[0]) == _call(right[0]):
        left, right = left[1:], right[1:]
    return f"{_words(left)} -> {_words(right)}" if left or right else ""


def _views_before(view: StepView, event: Event) -> tuple[Event, ...]:
    row = first = view.row(event)
    while first > 0 and view.is_view[first - 1]:
        first -= 1
    return tuple(view.event(number) for number in range(first, row))


def _words(views: tuple[Event, ...], value: int | None = None) -> str:
    """What views show of a tensor, in the order in which they were taken, and ``value`` at last."""
    wanted = [*(view.reads[0].value for view in views[1:]), value]
    return ", ".join(map(_shown, views, wanted)) or "all of it"


def _shown(view: Event, wanted: int | None) -> str:
    """A view, and which of its outputs if it has several."""
    slots = [write.slot for write in view.writes if write.value == wanted]
    return _call(view) + (f"[{slots[0]}]" if slots and len(view.writes) > 1 else "")


def _call(view: Event) -> str:
    given = (f"{name}={text}" for name, text in split_arguments(view.args).items() if "%" not in text)
    return f"{base_name(view.op)}({', '.join(given)})"
