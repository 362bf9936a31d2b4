"""What two runs of one target do not repeat: the first operator of each kind. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from .describe import describe_cause
from .judge import Judge
from .ranks import DistributedTrace, OneRank
from .traces import TraceLike, side_of

_MAX_KINDS: Final = 20


def unstable_kinds(first: TraceLike, again: TraceLike, step: int) -> list[dict[str, Any]]:
    """The departures of one run from another up to a step, the first of each kind (``kind_of``), in order.

    None of them follows from another. Runs recorded at level ``contract`` have none. Of several ranks, each is looked
    at by itself, and what they received from one another is left out.
    """
    if "contract" in (first.manifest.get("level"), again.manifest.get("level")):
        return []
    num_ranks = first.manifest.get("ranks", 1)
    if num_ranks == 1:
        return _of_rank(first, again, step)
    one, two = (cast("DistributedTrace", trace) for trace in (first, again))
    of_ranks = [
        {**item, "rank": rank}
        for rank in range(num_ranks)
        for item in _of_rank(OneRank(one, rank), OneRank(two, rank), step)
        if item["cause"] != "collective"
    ]
    return first_of_each_kind(sorted(of_ranks, key=lambda item: item["step"]))[:_MAX_KINDS]


def _of_rank(first: TraceLike, again: TraceLike, step: int) -> list[dict[str, Any]]:
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
