"""What two runs of one target do not repeat: the first operator of each kind. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .describe import describe_cause
from .judge import Judge
from .traces import TraceLike, side_of

_MAX_KINDS: Final = 20


def unstable_kinds(first: TraceLike, again: TraceLike, step: int) -> list[dict[str, Any]]:
    """The departures of one run from another up to a step, the first of each kind (``kind_of``), in order.

    None of them follows from another. Runs recorded at level ``contract`` have none.
    """
    if "contract" in (first.manifest.get("level"), again.manifest.get("level")):
        return []
    judge = Judge(side_of(first), side_of(again))
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for number in [entry["step"] for entry in again.manifest["steps"] if entry["step"] <= step]:
        for origin, theirs in judge.passing(number):
            described = describe_cause(judge.of(origin, theirs), judge)
            found.setdefault(kind_of(described), described)
            if len(found) == _MAX_KINDS:
                return list(found.values())
    return list(found.values())


def first_of_each_kind(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Described departures or findings without those of a kind that came before."""
    kinds: dict[tuple[object, ...], dict[str, Any]] = {}
    for item in items:
        kinds.setdefault(kind_of(item), item)
    return list(kinds.values())


def kind_of(item: dict[str, Any]) -> tuple[object, ...]:
    """Operator, cause, module and phase."""
    return tuple(item.get(key) for key in ("op", "cause", "module", "phase"))
