"""What differed in passing, as rows of a table: what is one change to the code is one row. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opguard_ci.report.clean import clean
from opguard_ci.report.divergence import divergence_line
from opguard_ci.report.layout import Line, paragraph, table, title

MAX_ROWS: Final = 5


@dataclass(slots=True)
class _Row:
    """One change: the first of its objects, and in which operators and ranks it shows."""

    first: Mapping[str, Any]
    places: list[tuple[str, str]] = field(default_factory=list)

    def cells(self) -> list[str]:
        step, phase, op, module, what = divergence_line(self.first)
        ops, ranks = (list(dict.fromkeys(names)) for names in zip(*self.places, strict=True))
        op += f" and {len(ops) - 1} more" if len(ops) > 1 else ""
        what += f" (rank {', '.join(ranks)})" if ranks != [""] else ""
        return [step, phase, op, module, what]


def passing_lines(transient: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Lay out what differed in passing."""
    if not transient:
        return []
    rows = _rows(transient, ranks=any(item.get("rank") for item in transient))
    lines = title(f"Differed in passing ({len(rows)})")
    lines += table([row.cells() for row in rows[:MAX_ROWS]], indent=2)
    if len(rows) > MAX_ROWS:
        lines += paragraph(f"and {len(rows) - MAX_ROWS} more")
    return lines


def _rows(transient: Sequence[Mapping[str, Any]], *, ranks: bool) -> list[_Row]:
    """One row for each replaced block, and for what several ranks do alike. ``ranks``: several ran, so say which."""
    rows: list[_Row] = []
    latest: dict[str, _Row] = {}
    for item in transient:
        change, place = _change(item), (clean(item.get("op")), clean(item.get("rank")) if ranks else "")
        if change not in latest or place in latest[change].places:  # the same again: it is done twice
            latest[change] = _Row(item)
            rows.append(latest[change])
        latest[change].places.append(place)
    return rows


def _change(item: Mapping[str, Any]) -> str:
    """What makes two objects one change; of replaced operators, that they replace the same."""
    names = ["step", "phase", "module", "cause", "detail"]
    is_block = item.get("cause") == "code" and item.get("before") and item.get("after")
    return repr([item.get(name) for name in [*names, *(("before", "after") if is_block else ("op",))]])
