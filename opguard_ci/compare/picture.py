"""What a report draws of two runs: which sections of the contract agree in which steps, and the operators around a
divergence side by side. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np

from ..trace.model import PHASES, Event
from .align import Alignment, align
from .hashes import Words
from .ranks import DistributedTrace, OneRank
from .traces import TraceLike, side_of
from .values import base_name, written

_ABOVE: Final = 14
_BELOW: Final = 26
"""So many rows are shown above and below the divergence."""
_GLANCE: Final = 180
"""Most cells of the whole step's picture."""
_HARD: Final = ("loss", "values", "parameters", "buffers", "optimizer", "rng", "final")
_WORST: Final = ("reference", "candidate", "changed", "result", "moved", "values", "renamed", "same")
"""The states of a row, the one that a glance must not miss first."""


def picture(reference: TraceLike, candidate: TraceLike, divergence: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is drawn of two runs.

    ``steps``: their numbers. ``strips``: ``name``, ``hard`` (whether it fails a comparison) and ``cells``, one a step:
    ``same``, ``different``, ``reference`` or ``candidate`` (in that run only), or ``none``. ``operators``: see
    ``operators``; null without a divergence at an operator whose events can be read.
    """
    found = strips(reference.manifest, candidate.manifest)
    at_contract = "contract" in (_level(reference), _level(candidate))
    if divergence is None or "event" not in divergence or at_contract:
        return {**found, "operators": None}
    if reference.manifest.get("ranks", 1) > 1:  # the operators are those of the rank that is named
        both = (cast("DistributedTrace", trace) for trace in (reference, candidate))
        reference, candidate = (OneRank(trace, divergence["rank"]) for trace in both)
    return {**found, "operators": operators(reference, candidate, divergence)}


def _level(trace: TraceLike) -> Any:
    return trace.manifest.get("level")


# The contract


def strips(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Steps and strips of two manifests: what their digests say."""
    sides = [
        {entry["step"]: _flat(entry["digests"]) for entry in manifest["steps"]} for manifest in (reference, candidate)
    ]
    steps = sorted({*sides[0], *sides[1]})
    present = {name for side in sides for digests in side.values() for name in digests}
    names = [*(name for name in _HARD if name in present), *sorted(present - {*_HARD, "contract"}, key=_order)]
    cells = {name: [_cell(name, *(side.get(step) for side in sides)) for step in steps] for name in names}
    rows = [{"name": name, "hard": name in _HARD, "cells": cells[name]} for name in names]
    return {"steps": steps, "strips": rows}


def _flat(digests: Mapping[str, Any]) -> dict[str, str]:
    """Digests by name; those of the operators by phase."""
    found = {name: digest for name, digest in digests.items() if name != "operators"}
    return {**found, **{f"operators, {phase}": digest for phase, digest in digests.get("operators", {}).items()}}


def _order(name: str) -> tuple[bool, int, str]:
    phase = name.removeprefix("operators, ")
    return phase in PHASES, PHASES.index(phase) if phase in PHASES else 0, name


def _cell(name: str, left: Mapping[str, str] | None, right: Mapping[str, str] | None) -> str:
    mine, other = (left or {}).get(name), (right or {}).get(name)
    if mine is None and other is None:
        return "none"
    if other is None or mine is None:
        return "reference" if other is None else "candidate"
    return "same" if mine == other else "different"


# Operators


@dataclass(slots=True)
class Laid:
    """The rows of a step: the places in the two lists (-1: none), the state, and where what moved stands."""

    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    moved: dict[tuple[int, int], int] = field(default_factory=dict)
    """By side (0, 1) and place: the place on the other side."""


def operators(reference: TraceLike, candidate: TraceLike, divergence: Mapping[str, Any]) -> dict[str, Any] | None:
    """The two lists of operators around a divergence, laid side by side; null if its event is none of them.

    ``step``; ``rows`` around the divergence, each with ``state``, ``here`` and the events of both sides (``reference``,
    ``candidate``; null where the side has none); ``above`` and ``below``: rows that are not shown; ``counts`` of the
    step's rows by state; ``glance``: the whole step in few cells, each with its worst ``state``, the ``phase`` in which
    it begins, and ``here``.

    States: ``same``; ``renamed`` (the same values by another form of the operator); ``values`` (the same call on other
    values); ``result`` (the same call on the same values gave another result); ``changed`` (the same operator with
    other arguments or shapes); ``moved``; ``reference`` and ``candidate`` (in that run only).
    """
    sides = side_of(reference), side_of(candidate)
    number = 0 if divergence.get("side") == "reference" else 1
    step = sides[number].step_of(divergence["event"])
    event = sides[number].event(divergence["event"])
    if step is None or event is None:
        return None
    aligned = align(*(side.view(step) for side in sides))
    place = (aligned.reference, aligned.candidate)[number].place(event)
    if place is None:
        return None
    rows = lay_out(aligned)
    here = (rows.left, rows.right)[number].index(place)
    low, high = max(0, here - _ABOVE), min(len(rows.state), here + _BELOW + 1)
    counts = {state: rows.state.count(state) for state in _WORST}
    return {
        "step": step,
        "rows": [{**_row(aligned, rows, n), "here": n == here} for n in range(low, high)],
        "above": low,
        "below": len(rows.state) - high,
        "counts": {state: count for state, count in counts.items() if count},
        "glance": _glance(aligned, rows, here),
    }


def lay_out(aligned: Alignment) -> Laid:
    """Both lists of a step as rows: pairs side by side, and between them what only one side has."""
    rows = Laid()
    mine, other = aligned.reference, aligned.candidate
    moved = _moved(aligned)
    low = (0, 0)
    states = _states(aligned)
    ends = [*zip(aligned.pairs, states, strict=True), ((len(mine), len(other)), "")]
    for high, state in ends:
        gaps = [range(low[n], high[n]) for n in (0, 1)]
        for n in range(max(map(len, gaps))):
            left, right = (gap[n] if n < len(gap) else -1 for gap in gaps)
            rows.left.append(left)
            rows.right.append(right)
            rows.state.append(_alone(aligned, (left, right), moved))
        if state:
            rows.left.append(high[0])
            rows.right.append(high[1])
            rows.state.append(state)
        low = (high[0] + 1, high[1] + 1)
    rows.moved = moved
    return rows


def _states(aligned: Alignment) -> list[str]:
    """The state of each pair."""

    def equal(name: str) -> Any:
        columns: list[Words] = [
            getattr(side.view.hashes, name)[side.rows[places]]
            for side, places in zip((aligned.reference, aligned.candidate), aligned.places, strict=True)
        ]
        return columns[0] == columns[1]

    found = np.where(equal("call"), "result", np.where(equal("result"), "renamed", "values"))
    return [str(state) for state in np.where(equal("full"), "same", found)]


def _alone(aligned: Alignment, places: tuple[int, int], moved: Mapping[tuple[int, int], int]) -> str:
    """The state of a row between two pairs."""
    left, right = places
    if any((side, place) in moved for side, place in enumerate(places)):
        return "moved"
    if left < 0 or right < 0:
        return "candidate" if left < 0 else "reference"
    is_same = base_name(aligned.reference[left].op) == base_name(aligned.candidate[right].op)
    return "changed" if is_same else "candidate"


def _moved(aligned: Alignment) -> dict[tuple[int, int], int]:
    """What stands elsewhere on the other side: first what did the same, then what has the same form."""
    sides = (aligned.reference, aligned.candidate)
    alone = [np.delete(np.arange(len(side)), places) for side, places in zip(sides, aligned.places, strict=True)]
    found: dict[tuple[int, int], int] = {}
    for name in ("full", "form"):
        spare: dict[int, deque[int]] = defaultdict(deque)
        for place in alone[1].tolist():
            if (1, place) not in found:
                spare[int(getattr(sides[1].view.hashes, name)[sides[1].rows[place]])].append(place)
        for place in alone[0].tolist():
            others = spare.get(int(getattr(sides[0].view.hashes, name)[sides[0].rows[place]]))
            if (0, place) not in found and others:
                other = others.popleft()
                found[0, place], found[1, other] = other, place
    return found


def _row(aligned: Alignment, rows: Laid, number: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"state": rows.state[number]}
    names, sides = ("reference", "candidate"), (aligned.reference, aligned.candidate)
    for side, place in enumerate((rows.left[number], rows.right[number])):
        brief = None
        if place >= 0:
            elsewhere = rows.moved.get((side, place))
            brief = _brief(sides[side][place], None if elsewhere is None else sides[1 - side][elsewhere].index)
        shown[names[side]] = brief
    return shown


def _brief(event: Event, moved: int | None) -> dict[str, Any]:
    outputs = [f"{write.value:016x}" if write.value else None for write in written(event)]
    return {
        "event": event.index,
        "phase": event.phase,
        "op": event.op,
        "module": event.module,
        "args": event.args,
        "outputs": outputs[:4],
        "moved": moved,
    }


def _glance(aligned: Alignment, rows: Laid, here: int) -> list[dict[str, Any]]:
    """The rows of a step in at most ``_GLANCE`` cells."""
    count = len(rows.state)
    edges = np.linspace(0, count, min(count, _GLANCE) + 1).astype(int).tolist()
    found = []
    for low, high in pairwise(edges):
        state = min(rows.state[low:high], key=_WORST.index)
        left, right = rows.left[low], rows.right[low]
        event = aligned.reference[left] if left >= 0 else aligned.candidate[right]
        found.append({"state": state, "phase": event.phase, "here": low <= here < high})
    return found
