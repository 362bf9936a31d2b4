"""What the environment and what the code changed, as terminal text. Pure: works from the JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opguard_ci.report.clean import clean
from opguard_ci.report.divergence import divergence_block, place
from opguard_ci.report.layout import Line, field, items, title

_MAX_FIELDS: Final = 12
_SAME: Final = {
    "environment": "nothing: the reference computes the same in both environments",
    "code": "nothing: the reference and the candidate compute the same in one environment",
}

Part = Mapping[str, Any]


def attribution_lines(document: Mapping[str, Any]) -> list[Line]:
    """Lay out both parts: a line each, then the environment's divergence, as the code's is the report's first."""
    parts = document.get("attribution")
    if not parts:
        return []
    lines = title("Environment or code")
    for name in ("environment", "code"):
        lines += field(name, said(parts, name), style="mark" if _differs(parts[name]) else "")
    environment = parts["environment"]
    if _differs(environment):
        if first := environment.get("first_divergence"):
            lines += title("What the environment changed")
            lines += divergence_block(first)
        differs = [clean(line) for line in environment["differs"]]
        more = [f"… and {len(differs) - _MAX_FIELDS} more"] if len(differs) > _MAX_FIELDS else []
        lines += items([*(clean(note) for note in environment["notes"]), *differs[:_MAX_FIELDS], *more])
    return lines


def said(parts: Mapping[str, Part], name: str) -> str:
    """What one of the two parts changed, in a sentence."""
    part = parts[name]
    if not _differs(part):
        return _SAME[name] if part["verdict"] in ("identical", "equivalent") else clean(part["verdict"])
    if first := part.get("first_divergence"):
        return f"{place(first)}: {clean(first.get('cause'))}"
    return "the numbers"


def _differs(part: Part) -> bool:
    return bool(part["verdict"] == "diverged")
