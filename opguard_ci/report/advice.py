"""What to run next after a verdict. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from opguard_ci.report.clean import clean

_REPEATABILITY: Final = frozenset({"kernel", "random", "overwritten", "uninitialised", "collective"})
"""Causes that a run which does not repeat itself would show as well."""

_AROUND: Final = 4
"""Events before and after the one that a report names."""


def next_steps(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Commands, each with what it is good for, that fit the verdict."""
    verdict = document["verdict"]
    first = document.get("first_divergence") or {}
    traces = {side: (document.get(side) or {}).get("trace") for side in ("reference", "candidate")}
    rows: list[tuple[str, str]] = []
    shown = traces.get(first.get("side") or "candidate") or document.get("trace")
    if isinstance(event := first.get("event"), int) and shown:
        around = f"{max(event - _AROUND, 0)}..{event + _AROUND}"
        rows.append((_command("show", shown, "--events", around, "--tensors"), "what ran around it"))
    if document.get("reproducer"):
        rows.append((f"python {shlex.quote(clean(document['reproducer']))}/repro.py", "repeat the operator"))
    if verdict == "diverged" and first.get("cause") in _REPEATABILITY and document.get("target"):
        rows.append((_command("replay", document["target"]), "does the target repeat itself?"))
    keys = {(document.get(side) or {}).get("environment") for side in traces}
    if verdict in ("diverged", "environment") and len(keys) > 1 and all(traces.values()):
        rows.append((_command("doctor", "--diff", *traces.values()), "what differs between the environments"))
    if verdict == "unstable" and document.get("profile") == "observe" and document.get("target"):
        rows.append((_command("replay", document["target"], "--profile", "strict"), "with everything pinned"))
    if verdict in ("findings", "untestable") and document.get("trace") and document.get("steps"):
        rows.append((_command("show", document["trace"]), "what was captured"))
    return rows


def _command(*words: object) -> str:
    return "opguard " + " ".join(shlex.quote(clean(word)) for word in words)
