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
        self._unstable = tuple(dict(trace.manifest.get("unstable", {})) for trace in self._traces)
        self._accepted: list[_Accepted] = []
        self._left_out: list[tuple[int, str, str]] = []  # step, contract name, what is declared unstable
        self.notes = self._other_recipe()

    def _other_recipe(self) -> list[str]:
        notes = []
        for what, sides in (
            ("tolerance", [shown(limits) for limits in self._limits]),
            ("what they declare unstable", [", ".join(patterns) for patterns in self._unstable]),
        ):
            if sides[0] != sides[1]:
                mine, other = (text or "none" for text in sides)
                notes.append(
                    f"The two recipes differ in {what} (reference: {mine}; candidate: {other}): only what both say "
                    "counts."
                )
        return notes

    # Declared unstable

    def leaves_out(self, step: int, difference: Difference) -> bool:
        """Whether both recipes declare a contract value unstable, by its name."""
        events = (difference.reference, difference.candidate)
        if events[0] is None or events[1] is None:
            return False
        pattern = self._declared(events[0].args, events[1].args)
        if pattern is not None:
            self._left_out.append((step, difference.name, pattern))
        return pattern is not None

    def names_operator(self, op: str) -> str | None:
        """The pattern by which both recipes declare an operator unstable; None if they do not."""
        return self._declared(op, op)

    def follows(self, step: int, difference: Difference, pattern: str) -> None:
        """Note that a contract value differs for nothing but an operator that is declared unstable."""
        self._left_out.append((step, difference.name, pattern))

    @property
    def any_unstable(self) -> bool:
        """Whether both recipes declare anything unstable."""
        return all(self._unstable)

    def _declared(self, *names: str) -> str | None:
        found = [matching(mine, name) for mine, name in zip(self._unstable, names, strict=True)]
        return found[0][0] if found[0] is not None and found[1] is not None else None

    # Within a tolerance

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

    def unstable_json(self) -> dict[str, Any]:
        """What is declared unstable, and what was not judged for it; empty where nothing is declared."""
        if not any(self._unstable):
            return {}
        return {
            "reference": dict(self._unstable[0]),
            "candidate": dict(self._unstable[1]),
            "not_judged": [
                {"step": step, "name": name, "pattern": pattern, "reason": self._unstable[0][pattern]}
                for step, name, pattern in self._left_out[:_MAX_LISTED]
            ],
            "num_not_judged": len(self._left_out),
        }

    def tolerance_json(self) -> dict[str, Any]:
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
