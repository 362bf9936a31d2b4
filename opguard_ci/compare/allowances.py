"""What both runs' recipes allow to differ, and what of it does. Pure.

Only what both recipes allow is allowed: a change of the recipe cannot make its own difference pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..tolerance import Tolerance, matching, parse_tolerances, shown
from ..trace.known import number_format
from ..trace.model import Event
from .contract import Difference
from .deviation import Deviation, deviation
from .traces import TraceLike

_MAX_LISTED: Final = 50


@dataclass(frozen=True, slots=True)
class _Accepted:
    step: int
    name: str
    limit: Tolerance
    found: Deviation

    def to_json(self) -> dict[str, Any]:
        found = self.found
        return {
            "step": self.step,
            "name": self.name,
            "allowed": str(self.limit),
            "different": found.different,
            "elements": found.elements,
            "max_ulp": found.max_ulp,
            "max_abs": found.max_abs,
            "max_rel": found.max_rel,
        }


class Allowances:
    """Judges contract values that differ by what the recipes of both sides allow."""

    def __init__(self, reference: TraceLike, candidate: TraceLike) -> None:
        self._traces = (reference, candidate)
        self._limits = tuple(parse_tolerances(trace.manifest.get("tolerance", {})) for trace in self._traces)
        self._accepted: list[_Accepted] = []
        self.notes = self._other_recipe()

    def _other_recipe(self) -> list[str]:
        if self._limits[0] == self._limits[1]:
            return []
        mine, other = (shown(limits) or "none" for limits in self._limits)
        return [
            f"The two recipes differ in tolerance (reference: {mine}; candidate: {other}): only what both allow is."
        ]

    def accepts(self, step: int, difference: Difference) -> bool:
        """Whether a contract value lies as near to the reference's as both recipes ask."""
        pair = (difference.reference, difference.candidate)
        if pair[0] is None or pair[1] is None:
            return False
        limits = [matching(mine, event.args) for mine, event in zip(self._limits, pair, strict=True) if event]
        if None in limits:
            return False
        found = [self._measured((pair[0], pair[1]), limit[1]) for limit in limits if limit]
        if not all(one is not None and one.within for one in found):
            return False
        strictest = max(range(2), key=lambda side: found[side].share)  # type: ignore[union-attr]
        limit, measured = limits[strictest], found[strictest]
        assert limit is not None and measured is not None
        self._accepted.append(_Accepted(step, difference.name, limit[1], measured))
        return True

    def _measured(self, pair: tuple[Event, Event], limit: Tolerance) -> Deviation | None:
        reads = [event.reads[0] for event in pair]
        dtype = number_format(reads[0].spec)
        if dtype is None or reads[0].spec != reads[1].spec:
            return None
        numbers = [trace.numbers(read.value, read.spec) for trace, read in zip(self._traces, reads, strict=True)]
        if numbers[0] is None or numbers[1] is None or len(numbers[0]) != len(numbers[1]):
            return None
        return deviation(numbers[0], numbers[1], dtype, limit)

    @property
    def used(self) -> bool:
        """Whether anything differs that was allowed to."""
        return bool(self._accepted)

    def to_json(self) -> dict[str, Any]:
        """What is allowed, and what differs within it; empty where nothing is allowed."""
        if not any(self._limits):
            return {}
        largest = max(self._accepted, key=lambda one: one.found.share, default=None)
        return {
            "reference": _texts(self._limits[0]),
            "candidate": _texts(self._limits[1]),
            "within": [one.to_json() for one in self._accepted[:_MAX_LISTED]],
            "num_within": len(self._accepted),
            "largest": None if largest is None else largest.to_json(),
        }


def _texts(limits: dict[str, Tolerance]) -> dict[str, str]:
    return {pattern: str(limit) for pattern, limit in limits.items()}
