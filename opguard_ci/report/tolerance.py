"""What differs within a recipe's tolerance, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_ci.report.clean import clean
from opguard_ci.report.layout import count


def within_tolerance(document: Mapping[str, Any]) -> str:
    """How much differs within tolerance, in one phrase; empty where nothing does."""
    tolerance = document.get("tolerance") or {}
    largest = tolerance.get("largest")
    if document.get("verdict") != "equivalent" or not isinstance(largest, Mapping):
        return ""
    amounts = [f"{count(largest['max_ulp'], 'ulp')}"] if type(largest.get("max_ulp")) is int else []
    amounts += [
        f"{largest[key]:.3g} {word}"
        for key, word in (("max_abs", "absolute"), ("max_rel", "relative"))
        if isinstance(largest.get(key), float)
    ]
    differ = "1 contract value differs" if tolerance["num_within"] == 1 else (
        f"{count(tolerance['num_within'], 'contract value')} differ"
    )  # fmt: skip
    return (
        f"within tolerance: {differ}, the most {clean(largest['name'], 80)} in step {clean(largest['step'])} "
        f"by {', '.join(amounts)} where {clean(largest['allowed'], 80)} is allowed"
    )


def tolerance_sentence(document: Mapping[str, Any]) -> str:
    """What a recipe allows, and what of it was needed; empty where it allows nothing."""
    tolerance = document.get("tolerance") or {}
    allowed = ", ".join(f"{clean(name)} {clean(limit)}" for name, limit in (tolerance.get("candidate") or {}).items())
    if not allowed:
        return ""
    needed = within_tolerance(document) or "nothing differs within it"
    return f"tolerance {allowed}: {needed.removeprefix('within tolerance: ')}"
