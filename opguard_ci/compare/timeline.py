"""Two runs in one logical time: operators that stand at the same place have the same moment. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..trace.model import Event
from .align import align
from .picture import lay_out
from .side import Side
from .traces import TraceLike, side_of

MAX_MOMENTS: Final = 100_000
"""So many moments are laid out, in whole steps around the divergence."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What both runs did at one moment, null where one did nothing, and how it differs (see ``picture.operators``)."""

    state: str
    reference: Event | None
    candidate: Event | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps that were laid out, in order, and how many there are in all."""

    steps: list[tuple[int, list[Moment]]]
    num_steps: int


def timeline(reference: TraceLike, candidate: TraceLike, divergence: Mapping[str, Any] | None) -> Timeline:
    """Lay out the steps of two runs of one rank: all of them, or as many around the divergence as ``MAX_MOMENTS`` hold.

    One step is laid out in any case.
    """
    sizes: dict[int, int] = {}
    for trace in (reference, candidate):
        for info in trace.index():
            sizes[info.step] = max(sizes.get(info.step, 0), info.events)
    sides = side_of(reference), side_of(candidate)
    left, chosen = MAX_MOMENTS, list[int]()
    for step in _nearest(sorted(sizes), divergence["step"] if divergence else None):
        left -= sizes[step]
        if left < 0 and chosen:
            break
        chosen.append(step)
    return Timeline([(step, list(_moments(sides, step))) for step in sorted(chosen)], len(sizes))


def _nearest(steps: list[int], center: int | None) -> list[int]:
    return steps if center is None else sorted(steps, key=lambda step: (abs(step - center), step))


def _moments(sides: tuple[Side, Side], step: int) -> Iterator[Moment]:
    aligned = align(*(side.view(step) for side in sides))
    rows = lay_out(aligned)
    for state, left, right in zip(rows.state, rows.left, rows.right, strict=True):
        mine = aligned.reference[left] if left >= 0 else None
        yield Moment(state, mine, aligned.candidate[right] if right >= 0 else None)
