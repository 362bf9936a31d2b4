"""Environment or code (DESIGN 9): a golden's commit was run here, so that what each of them changed is seen alone.

The stored run and this one are of the same code: what differs between them, the environment changed. This run and the
candidate's were made in the same environment: what differs between them, the code changed.
"""

from __future__ import annotations

from typing import Any, Final

from opguard_ci.compare.verdict import compare_traces
from opguard_ci.determinism.environment import diff
from opguard_ci.errors import UsageError
from opguard_ci.store.golden import numerics_digest
from opguard_ci.trace.reader import Trace

PASSING: Final = ("identical", "equivalent")


def attribute(stored: Trace, again: Trace, candidate: Trace) -> dict[str, Any]:
    """The parts of the difference between a stored trace and the candidate's.

    Args:
        stored: what was recorded once, perhaps elsewhere.
        again: the same commit, run here.
        candidate: what is asked about, run here.

    Returns:
        ``environment`` and ``code``, each with ``verdict``, ``first_divergence``, ``contract`` and ``notes`` like a
        compare object; ``environment`` also with ``differs``: in what the two environments differ, a line each.

    """
    documents = (trace.manifest["environment"].get("document") or {} for trace in (stored, again))
    return {
        "environment": {**_part(stored, again), "differs": diff(*documents)},
        "code": _part(again, candidate),
    }


def why_not(stored: Trace, again: Trace) -> str:
    """Why a stored run and one of the same commit may differ by more than the environment; empty if they may not."""
    for name, words in (("argv", "arguments"), ("profile", "profile")):
        mine, other = stored.manifest[name], again.manifest[name]
        if mine != other:
            return f"the golden was recorded with other {words} ({mine!r}, not {other!r})."
    return ""


def _part(reference: Trace, candidate: Trace) -> dict[str, Any]:
    try:
        document = compare_traces(reference, candidate, across_environments=True).to_json()
    except UsageError as error:
        if error.slug != "events-missing":
            raise
        is_same = numerics_digest(reference.manifest) == numerics_digest(candidate.manifest)
        note = "The golden's events are not on this machine, so the operator is not known."
        document = {"verdict": "equivalent" if is_same else "diverged", "notes": [] if is_same else [note]}
    return {
        "verdict": document["verdict"],
        "first_divergence": document.get("first_divergence"),
        "contract": document.get("contract", []),
        "notes": document["notes"],
    }
