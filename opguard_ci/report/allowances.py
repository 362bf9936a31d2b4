"""What a recipe lets pass, in words: what differs within its tolerance, what it declares unstable. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opguard_ci.report.clean import clean
from opguard_ci.report.layout import count, join_words

_MAX_NAMES: Final = 4


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


def not_judged(document: Mapping[str, Any]) -> str:
    """What was not judged since it is declared unstable, in one phrase; empty where nothing was left out."""
    declared = document.get("declared_unstable") or {}
    if document.get("verdict") != "equivalent" or not declared.get("num_not_judged"):
        return ""
    names = list(dict.fromkeys(clean(entry["name"], 80) for entry in declared["not_judged"]))
    shown = join_words(names) if len(names) <= _MAX_NAMES else ", ".join(names[:_MAX_NAMES]) + " and more"
    return f"but for what is declared unstable: {shown} {'differ' if len(names) > 1 else 'differs'}, not judged"


def allowed_words(document: Mapping[str, Any]) -> str:
    """What lets an equivalent run pass, in a word or two: for a line of a table."""
    words = ["within tolerance"] if within_tolerance(document) else []
    words += ["declared unstable values left out"] if not_judged(document) else []
    return ", ".join(words)


def allowance_sentences(document: Mapping[str, Any]) -> list[str]:
    """What a recipe allows, and what of it was needed; none where it allows nothing."""
    sentences = []
    tolerance = document.get("tolerance") or {}
    if limits := tolerance.get("candidate"):
        allowed = ", ".join(f"{clean(name)} {clean(limit)}" for name, limit in limits.items())
        needed = within_tolerance(document) or "nothing differs within it"
        sentences.append(f"tolerance {allowed}: {needed.removeprefix('within tolerance: ')}")
    declared = (document.get("declared_unstable") or {}).get("candidate") or {}
    sentences += [f"declared unstable: {clean(name)} ({clean(reason)})" for name, reason in declared.items()]
    return sentences
