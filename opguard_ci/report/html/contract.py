"""Which parts of two runs agree in which steps, as a strip of squares for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from opguard_ci.report.html.build import Html, el, join, section

_COLUMNS: Final = 64
_WORST: Final = ("different", "reference", "candidate", "same", "none")
_WORDS: Final = {
    "same": "equal",
    "different": "different",
    "reference": "only in the reference",
    "candidate": "only in the candidate",
    "none": "nothing of it",
}


def strips(picture: Mapping[str, Any]) -> Html | None:
    """The strips of all sections; nothing for runs without a step."""
    steps, rows = picture["steps"], picture["strips"]
    if not steps or not rows:
        return None
    edges = _edges(len(steps))
    several = len(edges) - 1 < len(steps)
    head = el("tr", el("td"), [el("th", _step(steps[low]), scope="col") for low in edges[:-1]])
    promised = [row for row in rows if row["hard"]]
    others = [row for row in rows if not row["hard"]]
    body = [
        *([_heading("promised: fails the comparison", len(edges))] if promised else []),
        *(_row(row, steps, edges) for row in promised),
        *([_heading("noted", len(edges))] if others else []),
        *(_row(row, steps, edges) for row in others),
    ]
    legend = el(
        "p",
        [join(el("i", class_=f"cell {shade}"), " ", words, "  ") for shade, words in _present(rows)],
        "Each square stands for several steps and shows the worst of them." if several else None,
        class_="legend",
    )
    table = el("table", el("thead", head), el("tbody", body), class_="strips")
    return section("Contract, step by step", el("div", table, class_="scroll"), legend)


def _edges(count: int) -> list[int]:
    columns = min(count, _COLUMNS)
    return [count * n // columns for n in range(columns + 1)]


def _step(step: int) -> str:
    return "setup" if step < 0 else str(step)


def _heading(words: str, columns: int) -> Html:
    return el("tr", el("th", words, colspan=columns, scope="colgroup", class_="group"))


def _row(row: Mapping[str, Any], steps: Sequence[int], edges: Sequence[int]) -> Html:
    cells = []
    for low, high in pairwise(edges):
        state = min(row["cells"][low:high], key=_WORST.index)
        span = _step(steps[low]) if high - low == 1 else f"{_step(steps[low])} to {_step(steps[high - 1])}"
        cells.append(
            el("td", el("i", class_=f"cell {_shade(row, state)}", title=f"{row['name']}, {span}: {_WORDS[state]}"))
        )
    return el("tr", el("th", row["name"], scope="row"), cells)


def _present(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The shades that occur, with their meaning."""
    found = {(_shade(row, state), state) for row in rows for state in row["cells"]}
    return [
        (shade, _WORDS[state] + (", no failure by itself" if shade != state else ""))
        for state in _WORDS
        for shade in (state, f"{state} soft")
        if (shade, state) in found
    ]


def _shade(row: Mapping[str, Any], state: str) -> str:
    return f"{state} soft" if state == "different" and not row["hard"] else state
