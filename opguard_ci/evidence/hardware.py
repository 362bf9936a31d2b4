"""A run that differs alone from many equal ones, in a bit or a few of one tensor: a fault of the machine, perhaps."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from opguard_ci.compare.arguments import argument_name
from opguard_ci.compare.verdict import compare_traces
from opguard_ci.evidence.flips import find_flips
from opguard_ci.evidence.places import Place, places
from opguard_ci.evidence.zoom import CannotZoomError, Side, UnlikeError, repeat, values_of
from opguard_ci.trace.model import Event
from opguard_ci.trace.reader import Trace
from opguard_ci.worker.commits import Run

MIN_RUNS: Final = 5
"""Of fewer runs, one that differs alone says little."""


def odd_run(traces: Sequence[Trace]) -> int | None:
    """The number of the one run that differs from all others, which agree in every digest; None if it is not so."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, trace in enumerate(traces):
        groups[json.dumps([step["digests"] for step in trace.manifest["steps"]], sort_keys=True)].append(number)
    alone = [numbers[0] for numbers in groups.values() if len(numbers) == 1]
    return alone[0] if len(traces) >= MIN_RUNS and len(groups) == 2 and len(alone) == 1 else None


def suspect(traces: Sequence[Trace], again: Callable[[Path | None], Run], scratch: Path) -> dict[str, Any] | None:
    """What speaks for the hardware: the run that differs alone, and element and bits of the first tensor that does.

    None where no run differs alone.

    ``again`` runs the target once more, for the right tensor (see ``zoom.Side``); of the run that went wrong there are
    only fingerprints. Without ``bits`` in the object, no few flipped bits explain the difference; ``detail`` says
    what was tried.
    """
    odd = odd_run(traces)
    if odd is None:
        return None
    right = traces[0 if odd else 1]
    first = compare_traces(right, traces[odd]).first_divergence
    found: dict[str, Any] = {"run": odd + 1, "runs": len(traces)}
    pair = _pair(first, right, traces[odd]) if first is not None else None
    if first is None or pair is None:
        return {**found, "detail": "the runs part where no tensors can be compared"}
    place, name, seen = pair
    event = place.event
    found.update(op=event.op, step=event.step, module=event.module, tensor=_shown(event, name))
    try:
        (kept,) = repeat(Side("reference", right, again), [place], scratch / "right", first["rank"])
    except (CannotZoomError, UnlikeError) as error:
        return {**found, "detail": f"the right tensor could not be had again: {error}"}
    content = kept.content(name)
    if isinstance(content, str):
        return {**found, "detail": f"the right tensor could not be kept: {content}"}
    size = content.data.size // max(content.elements, 1)
    bits = find_flips(content.data.tobytes(), content.dtype, seen, size) if size else None
    if bits is None:
        return {**found, "detail": "no flip of one to three bits of an element gives what was seen"}
    elements = sorted({bit // (8 * size) for bit in bits})
    return {
        **found,
        "dtype": content.dtype,
        "shape": list(content.shape),
        "elements": [_index(element, content.shape) for element in elements],
        "bits": [bit % (8 * size) for bit in bits],
        "detail": "",
    }


def _pair(first: dict[str, Any], right: Trace, odd: Trace) -> tuple[Place, str, int] | None:
    """The right run's event, and of the first tensor that is another in the odd one: its name, and what was seen."""
    numbers = first.get("events") or {}
    if numbers.get("reference") is None or numbers.get("candidate") is None:
        return None
    place = places(right, [numbers["reference"]], first["rank"])[numbers["reference"]]
    other = places(odd, [numbers["candidate"]], first["rank"])[numbers["candidate"]]
    if place.lane is None or place.event.op != other.event.op:
        return None
    mine, theirs = values_of(place.event), values_of(other.event)
    for name, (value, spec) in mine.items():
        if name in theirs and theirs[name][1] == spec and theirs[name][0] != value:
            return place, name, theirs[name][0]
    return None


def _shown(event: Event, name: str) -> str:
    role, _, number = name.partition(" ")
    return name if role == "output" else argument_name(event.args, int(number))


def _index(element: int, shape: Sequence[int]) -> list[int]:
    found = []
    for size in reversed(shape):
        element, place = divmod(element, size)
        found.append(place)
    return found[::-1]
