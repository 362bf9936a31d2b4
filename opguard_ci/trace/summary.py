"""What a trace is, in one bounded object: the answer of `opguard show` to no question."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from opguard_ci.errors import UsageError
from opguard_ci.trace.reader import Trace

_TOP: Final = 20
"""Operators, steps, findings and so on that a summary lists."""
_CLIP: Final = 1000
"""Longest text in an answer, in characters."""


@dataclass(slots=True)
class _Counted:
    """A list cut to what a person reads, and how much was cut."""

    left_out: dict[str, int]

    def top(self, name: str, items: list[Any]) -> list[Any]:
        if len(items) > _TOP:
            self.left_out[name] = len(items) - _TOP
        return items[:_TOP]


def summary(trace: Trace, rank: int) -> dict[str, Any]:
    """Manifest facts, steps, and operators by number of calls."""
    manifest = trace.manifest
    cut = _Counted({})
    operators: Counter[str] = Counter()
    unreadable = None
    try:
        steps = [{"step": info.step, "first": info.first, "events": info.events} for info in trace.index(rank)]
        for table in trace.steps(rank):
            names = table.strings.op.strings
            operators.update({names[number]: count for number, count in Counter(table.op).items()})
    except UsageError as error:
        if error.slug != "events-missing":
            raise
        steps, unreadable = [{"step": e["step"], "events": e["events"]} for e in manifest["steps"]], error.message
    by_count = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
    coverage = manifest["coverage"]
    where = shlex.quote(str(trace.path))
    return {
        "schema": 1,
        "verdict": "ok",
        "trace": str(trace.path),
        "rank": rank,
        **{key: manifest[key] for key in ("target", "argv", "cwd", "commit", "tree", "profile", "level", "scheme")},
        "environment": manifest["environment"]["key"],
        "ranks": manifest["ranks"],
        "complete": manifest["complete"],
        "outcome": manifest["outcome"],
        "last_operator": manifest["last_operator"],
        "coverage": {
            "operators": coverage["operators"],
            "hashed": coverage["hashed"],
            "unhashed": cut.top("unhashed", coverage["unhashed"]),
            "unseen": cut.top("unseen", coverage["unseen"]),
        },
        "steps": cut.top("steps", steps),
        "events_in_trace": sum(step["events"] for step in steps),
        "operators": cut.top("operators", [{"op": clip(name), "count": count} for name, count in by_count]),
        "findings": cut.top("findings", manifest["findings"]),
        "notes": cut.top("notes", manifest["notes"]),
        "left_out": cut.left_out,
        "unreadable": unreadable,
        "next": None if unreadable or not steps else f"opguard show {where} --events 0..49",
    }


def clip(text: str | None) -> str | None:
    """The text, cut to what an answer may hold."""
    return text if text is None or len(text) <= _CLIP else text[: _CLIP - 1] + "…"
