"""What capture saw, in a line: it stands in every report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.clean import clean
from opguard_ci.report.layout import count

_MAX_NAMES: Final = 8

Coverage = Mapping[str, Any]


def coverage_line(coverage: Coverage) -> str:
    """How many operators were fingerprinted, which were not, and what ran unseen."""
    operators, hashed = coverage.get("operators", 0), coverage.get("hashed", 0)
    text = f"{hashed:,} of {count(operators, 'operator')} fingerprinted"
    for key, meaning in (("unhashed", "without fingerprint"), ("unseen", "ran unseen")):
        if listed := [_phrase(item) for item in coverage.get(key) or ()]:
            more = f" and {len(listed) - _MAX_NAMES} more" if len(listed) > _MAX_NAMES else ""
            text += f"; {meaning}: {', '.join(listed[:_MAX_NAMES])}{more}"
    return text


def together(coverages: Sequence[Coverage]) -> Coverage:
    """The coverage of several runs as one; each name once."""
    numbers = {key: sum(each.get(key, 0) for each in coverages) for key in ("operators", "hashed")}
    names = {key: list(dict.fromkeys(_phrase(item) for each in coverages for item in each.get(key) or ()))
             for key in ("unhashed", "unseen")}  # fmt: skip
    return {**numbers, **names}


def _phrase(item: object) -> str:
    if isinstance(item, Mapping):
        return " ".join(clean(value) for value in item.values())
    return clean(item)
