"""What cures a target that does not repeat itself: each switch is tried alone, several times, in fresh children."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from opguard_ci.compare.verdict import compare_traces
from opguard_ci.evidence.repeats import Variant, run_once
from opguard_ci.trace.reader import read_trace
from opguard_ci.worker.request import RunRequest

VARIANTS: Final = (
    Variant("deterministic algorithms", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, switches=("deterministic",)),
    Variant("one thread", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
    Variant("one hash seed for all runs", hash_seed=0),
    Variant("seeds of all generators", switches=("seeds",)),
    Variant("--profile strict", profile="strict"),
)
_MAX_LUCK: Final = 0.05
_MIN_AGAIN, _MAX_AGAIN = 2, 10


def num_again(num_different: int, num_compared: int) -> int:
    """How often a variant is run after its first time, so that it agrees by luck alone in less than one case in twenty.

    ``num_different`` of ``num_compared`` runs as they are did not agree with the first. Between 2 and 10.
    """
    wanted = math.ceil(math.log(_MAX_LUCK) / math.log(1 - _rate(num_different, num_compared)))
    return min(max(wanted, _MIN_AGAIN), _MAX_AGAIN)


def luck(num_different: int, num_compared: int, again: int) -> float:
    """The chance that ``again`` runs agree with a first one though nothing is cured."""
    return (1 - _rate(num_different, num_compared)) ** again


def _rate(num_different: int, num_compared: int) -> float:
    """How often a run differs, by Laplace's rule: after one run that differed, two in three."""
    return (num_different + 1) / (num_compared + 2)


def diagnose(
    request: RunRequest, seen: tuple[int, int], folder: Path, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One object per variant: ``tried``, ``outcome`` (``cured``, ``unstable``, ``untestable``, ``pinned``), ``runs``,
    ``luck`` (of ``cured``) and ``detail``.

    ``seen``: how many runs as they are differed from the first, of how many.
    """
    found = []
    for place, variant in enumerate(VARIANTS):
        why = _is_pinned(variant, request)
        if why:
            found.append({"tried": variant.name, "outcome": "pinned", "runs": 0, "luck": None, "detail": why})
            continue
        progress(variant.name)
        found.append({"tried": variant.name, **_tried(request, variant, seen, folder / f"variant-{place}")})
    return found


def _is_pinned(variant: Variant, request: RunRequest) -> str:
    """Why a variant changes nothing; empty if it may."""
    if request.profile != "observe":
        return f"the profile {request.profile} pins it already"
    if variant.hash_seed is not None and os.environ.get("PYTHONHASHSEED", "random") != "random":
        return "PYTHONHASHSEED is set already"
    said = variant.variables and all(os.environ.get(name) == value for name, value in variant.variables.items())
    return "the environment says so already" if said and not variant.switches else ""


def _tried(request: RunRequest, variant: Variant, seen: tuple[int, int], folder: Path) -> dict[str, Any]:
    again = num_again(*seen)
    first = None
    for number in range(again + 1):
        place = folder / str(number)
        result = run_once(request, place, number, variant)
        if result.status != "ok":
            message = str(result.outcome.get("message", ""))
            return {"outcome": "untestable", "runs": number + 1, "luck": None, "detail": message}
        if first is None:
            first = read_trace(place)
            continue
        verdict = compare_traces(first, read_trace(place))
        if not verdict.passed:
            where = verdict.first_divergence or {}
            detail = f"{where.get('op', '')} {where.get('cause', '')}".strip() or verdict.verdict
            return {"outcome": "unstable", "runs": number + 1, "luck": None, "detail": detail}
    return {"outcome": "cured", "runs": again + 1, "luck": luck(*seen, again), "detail": ""}
