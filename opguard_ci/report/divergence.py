"""One divergence (or finding) as a block of text: where, what, by which evidence, from which line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from opguard_ci.report.clean import clean
from opguard_ci.report.layout import LABEL, Line, field, shorten, table
from opguard_ci.report.tensors import tensor_lines
from opguard_ci.report.words import CAUSES

MAX_FRAMES: Final = 6
MAX_OPERATORS: Final = 12
MAX_ROWS: Final = 12

Divergence = Mapping[str, Any]
Item = TypeVar("Item")


def place(divergence: Divergence) -> str:
    """Step, phase, operator and module in one phrase; of a contract value that no operator explains, its name."""
    where = clean(divergence.get("value") or divergence.get("op") or "the contract")
    if module := divergence.get("module"):
        where += f" in {clean(module)}"
    return ", ".join([*_when(divergence), where])


def divergence_line(divergence: Divergence) -> list[str]:
    """The cells of a divergence in a table of many."""
    what = clean(divergence.get("cause") or "")
    if detail := divergence.get("detail"):
        what += f": {clean(detail)}"
    cells = [clean(divergence.get(key) or "") for key in ("phase", "op", "module")]
    return [step_name(divergence.get("step")), *cells, what]


def step_name(step: object) -> str:
    """The name of a step: "step 3", or "setup" for what ran before step 0."""
    return "setup" if isinstance(step, int) and step < 0 else f"step {clean(step)}"


def divergence_block(divergence: Divergence) -> list[Line]:
    """Lay out all that is known about one divergence."""
    cause = clean(divergence.get("cause") or "")
    detail = clean(divergence.get("detail") or "")
    lines = field("where", _where(divergence))
    value = clean(divergence.get("value") or "")
    lines += field("value", value) if value else field("operator", clean(divergence.get("op") or "none"))
    if (computes := divergence.get("computes")) and computes != divergence.get("op"):
        lines += field("computes", clean(computes))
    lines += field("what", f"{cause}: {detail}" if detail else cause, style="mark")
    one_of = [clean(other) for other in _list(divergence.get("one_of"), str)]
    if one_of:
        lines += field("", f"One of: {', '.join(one_of)}. These traces do not tell.")
    elif cause in CAUSES and not (value and cause == "state"):  # no operator read it
        lines += field("", CAUSES[cause])
    lines += _draws(divergence.get("draw"))
    lines += _blocks(divergence)
    lines += _evidence(divergence.get("evidence"))
    lines += labelled("tensors", tensor_lines(_list(divergence.get("tensors"), dict)))
    lines += _stack(_list(divergence.get("stack"), dict))
    return lines


_DRAWN: Final = {"inserted": "inserted", "missing": "left out"}


def _draws(draw: object) -> list[Line]:
    """The draw that one side alone makes, and the first ones that see another generator state for it."""
    if not isinstance(draw, Mapping):
        return []
    shifted = draw.get("shifted")
    shifted = shifted if isinstance(shifted, Mapping) else {}
    rows = [(_DRAWN.get(str(draw.get("what")), ""), "", draw.get("by"))]
    rows += [("shifted", side, shifted.get(side)) for side in ("reference", "candidate")]
    cells = [[what, side, *_drawn(who)] for what, side, who in rows if isinstance(who, Mapping)]
    return _table("draws", cells)


def _drawn(who: Mapping[str, Any]) -> list[str]:
    stack = _list(who.get("stack"), dict)
    line = f"{clean(stack[0].get('file') or '?')}:{clean(stack[0].get('line') or '?')}" if stack else ""
    outputs = ", ".join(_list(who.get("outputs"), str)[:2])
    return [
        ", ".join(_when(who)),
        f"{clean(who.get('op') or '')} {clean(outputs)}",
        clean(who.get("module") or ""),
        shorten(line, 30),
    ]


def _when(divergence: Divergence) -> list[str]:
    step, phase = divergence.get("step"), divergence.get("phase")
    parts = [] if step is None else [step_name(step)]
    if phase and clean(phase) not in parts:
        parts.append(clean(phase))
    return parts


def _where(divergence: Divergence) -> str:
    parts = _when(divergence)
    ranks = _list(divergence.get("ranks"), int)
    if len(ranks) > 1:
        parts.append(f"ranks {', '.join(map(str, ranks))}")
    elif ranks or divergence.get("rank"):
        parts.append(f"rank {clean(divergence.get('rank'))}")
    if module := divergence.get("module"):
        parts.append(clean(module))
    if divergence.get("side") == "reference":
        parts.append("on the reference's side")
    seen = divergence.get("first_seen_step")
    if seen is not None and seen != divergence.get("step"):
        parts.append(f"first seen in {step_name(seen)}")
    return ", ".join(parts)


def _list(value: object, kind: type[Item]) -> list[Item]:
    """The entries of a list that are of one type: findings come from a manifest that anybody may have written."""
    return [item for item in value if isinstance(item, kind)] if isinstance(value, list | tuple) else []


def _blocks(divergence: Divergence) -> list[Line]:
    before, after = _list(divergence.get("before"), str), _list(divergence.get("after"), str)
    if before == after or all(op == divergence.get("op") for op in (*before, *after)):
        return []
    rows = max(len(before), len(after))
    cells = [["reference", "candidate"]]
    for row in range(min(rows, MAX_OPERATORS)):
        cells.append([clean(side[row]) if row < len(side) else "" for side in (before, after)])
    if rows > MAX_OPERATORS:
        rest = (f"… {len(side) - MAX_OPERATORS} more" if len(side) > MAX_OPERATORS else "" for side in (before, after))
        cells.append(list(rest))
    return _table("operators", cells, head=True)


def _evidence(evidence: object) -> list[Line]:
    rows: list[list[str]] = []
    if not isinstance(evidence, Mapping):
        return []
    for section in ("inputs", "arguments", "outputs"):
        for item in _list(evidence.get(section), dict):
            same = item.get("equal", item.get("reference") == item.get("candidate"))
            if section == "arguments" and same:
                continue
            rows.append(_evidence_row(_name(item), item, "the same" if same else _value(item.get("candidate"))))
    generator = evidence.get("generator")
    if isinstance(generator, Mapping) and generator.get("reference") != generator.get("candidate"):
        rows.append(_evidence_row("generator state", generator, _value(generator.get("candidate"))))
    if not rows:
        return []
    left_out = len(rows) - MAX_ROWS
    rows = [["", "reference", "candidate", ""], *rows[:MAX_ROWS]]
    if left_out > 0:
        rows.append([f"… {left_out} more"])
    return _table("evidence", rows, head=True)


def _evidence_row(name: str, item: Mapping[str, Any], candidate: str) -> list[str]:
    what = clean(item.get("spec") or "")
    if other := item.get("reference_spec"):
        what = f"{clean(other)} -> {what}"
    if item.get("changed_behind"):
        what += " changed unseen"
    return [name, _value(item.get("reference")), candidate, what.strip()]


def _name(item: Mapping[str, Any]) -> str:
    return shorten(clean(item.get("name") or ""), 32)


def _value(value: object) -> str:
    if value is None:
        return "none"
    return shorten(f"{value:,}" if type(value) is int else clean(value), 40)


def _stack(stack: Sequence[Mapping[str, Any]]) -> list[Line]:
    rows = []
    for number, frame in enumerate(stack[:MAX_FRAMES]):
        where = shorten(f"{clean(frame.get('file') or '?')}:{clean(frame.get('line') or '?')}", 40)
        source = clean(frame.get("source") or "").strip()
        rows.append([">" if number == 0 else " ", where, clean(frame.get("function") or "", 30), source])
    lines = _table("source", rows)
    if lines:
        lines[0] = Line(lines[0].text, "mark")
    if len(stack) > MAX_FRAMES:
        lines.append(Line(" " * LABEL + f"… {len(stack) - MAX_FRAMES} more frames", "dim"))
    return lines


def _table(label: str, rows: list[list[str]], *, head: bool = False) -> list[Line]:
    return labelled(label, table(rows, head=head))


def labelled(label: str, lines: list[Line]) -> list[Line]:
    """Lines of a field that were laid out already, with its label."""
    if lines:
        lines[0] = Line(f"  {label}".ljust(LABEL) + lines[0].text[LABEL:], lines[0].style)
    return lines
