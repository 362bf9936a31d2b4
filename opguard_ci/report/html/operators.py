"""The operators of a step side by side: the whole step at a glance, and the rows around the divergence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.compare.arguments import split_arguments
from opguard_ci.report.divergence import step_name
from opguard_ci.report.html.build import Html, el, join, number, operator, section
from opguard_ci.report.layout import count

_MARKS: Final = {
    "same": "=",
    "renamed": "≈",
    "values": "≠",
    "result": "!",
    "changed": "~",
    "moved": "↕",
    "reference": "−",
    "candidate": "+",
}
WORDS: Final = {
    "same": "the same in both",
    "renamed": "the same values by another form",
    "values": "other values in",
    "result": "other result of the same call",
    "changed": "other arguments or shapes",
    "moved": "stands elsewhere",
    "reference": "only in the reference",
    "candidate": "only in the candidate",
}
_HEIGHT, _CELL = 26, 5
_MAX_ARGUMENTS: Final = 16


def operators(found: Mapping[str, Any]) -> Html:
    """Both lists of a step."""
    columns = ("reference", "candidate")
    rows = [_row(row) for row in found["rows"]]
    if found["above"]:
        rows.insert(0, _rest(found["above"], "before"))
    if found["below"]:
        rows.append(_rest(found["below"], "after"))
    table = el(
        "table",
        el(
            "thead",
            el(
                "tr", [join(el("th", side, scope="col"), el("th") if not n else None) for n, side in enumerate(columns)]
            ),
        ),
        el("tbody", rows),
        class_="operators",
    )
    return section(
        f"Operators of {step_name(found['step'])}, side by side",
        _glance(found["glance"]),
        _legend(found["counts"]),
        table,
    )


def _legend(counts: Mapping[str, int]) -> Html:
    shown = [state for state in WORDS if counts.get(state)]
    entries = [join(el("i", _MARKS[s], class_=f"mark {s}"), f" {number(counts[s])} {WORDS[s]}  ") for s in shown]
    return el("p", entries, class_="legend")


def _rest(rows: int, where: str) -> Html:
    return el("tr", el("td", f"… {count(rows, 'row')} {where}", colspan=3), class_="rest")


# The whole step


def _glance(cells: Sequence[Mapping[str, Any]]) -> Html:
    """A bar of the step, in order of its operators, with its phases."""
    width = len(cells) * _CELL
    drawn = [
        el("rect", x=n * _CELL, y=0, width=_CELL, height=_HEIGHT, class_=f"g {cell['state']}")
        for n, cell in enumerate(cells)
    ]
    here = next((n for n, cell in enumerate(cells) if cell["here"]), None)
    if here is not None:
        drawn.append(el("path", d=f"M{here * _CELL + _CELL / 2} {_HEIGHT} l-5 8 h10 z", class_="here"))
    starts = [n for n, cell in enumerate(cells) if n == 0 or cells[n - 1]["phase"] != cell["phase"]]
    lines = [el("rect", x=n * _CELL, y=0, width=1, height=_HEIGHT + 8, class_="phase") for n in starts if n]
    picture = el(
        "svg", drawn, lines, viewBox=f"0 0 {width} {_HEIGHT + 8}", preserveAspectRatio="none", role="img",
        aria_label="The operators of the step in order; the divergence is marked", class_="glance",
    )  # fmt: skip
    ends = [*starts[1:], len(cells)]
    names = [
        el("span", cells[start]["phase"], style=f"flex-grow:{end - start}")
        for start, end in zip(starts, ends, strict=True)
    ]
    return el("div", picture, el("div", names, class_="phases"), class_="step")


# Rows


def _row(row: Mapping[str, Any]) -> Html:
    state, sides = row["state"], (row["reference"], row["candidate"])
    cells = [_cell(mine, other, state, n) for n, (mine, other) in enumerate((sides, sides[::-1]))]
    mark = el("td", _MARKS[state], class_="between", title=WORDS[state])
    return el(
        "tr",
        cells[0],
        mark,
        cells[1],
        class_=f"{state} here" if row["here"] else state,
    )


def _cell(mine: Mapping[str, Any] | None, other: Mapping[str, Any] | None, state: str, side: int) -> Html:
    if mine is None:
        return el("td", class_="nothing")
    kind = ("removed", "inserted")[side] if state in ("reference", "candidate", "changed") else ""
    if state == "moved":
        kind = "moved" if mine["moved"] is not None else ("removed", "inserted")[side]
    moved = el("span", f"there #{mine['moved']}", class_="tag") if mine["moved"] is not None else None
    return el(
        "td",
        el("span", f"#{mine['event']}", class_="event"),
        operator(mine["op"]),
        moved,
        el("span", mine["module"], class_="module") if mine["module"] else None,
        _arguments(mine, other if state == "changed" else None),
        _outputs(mine, other if state in ("values", "result", "changed") else None),
        class_=kind,
    )


def _arguments(mine: Mapping[str, Any], other: Mapping[str, Any] | None) -> Html | None:
    """The arguments that are neither tensors nor None; those that the other side has not are marked."""
    others = None if other is None else split_arguments(other["args"])
    pieces: list[Html] = []
    for name, value in list(split_arguments(mine["args"]).items())[:_MAX_ARGUMENTS]:
        is_other = others is not None and others.get(name) != value
        if is_other or not value.startswith(("%", "None")):
            pieces.append(join(el("mark" if is_other else "span", f"{name}={value}"), " "))
    return el("span", pieces, class_="args") if pieces else None


def _outputs(mine: Mapping[str, Any], other: Mapping[str, Any] | None) -> Html | None:
    values = [value for value in mine["outputs"] if value]
    if not values:
        return None
    others = values if other is None else other["outputs"]
    shown = [el("code", value[:8], class_=None if value in others else "other") for value in values]
    return el("span", "→ ", [join(value, " ") for value in shown], class_="outputs")
