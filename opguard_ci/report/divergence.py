"""One divergence (or finding) as a block of text: where, what, by which evidence, from which line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.clean import clean
from opguard_ci.report.layout import LABEL, Line, field, shorten, table
from opguard_ci.report.words import CAUSES

MAX_FRAMES: Final = 6
MAX_OPERATORS: Final = 12
MAX_ROWS: Final = 12

Divergence = Mapping[str, Any]


def place(divergence: Divergence) -> str:
    """Name step, phase, operator and module in one phrase."""
    step = divergence.get("step")
    when = [] if step is None else ["setup" if step < 0 else f"step {step}"]
    phase = divergence.get("phase")
    if phase and phase not in when:
        when.append(clean(phase))
    where = clean(divergence.get("op") or "the contract")
    if module := divergence.get("module"):
        where += f" in {clean(module)}"
    return ", ".join([*when, where])


def divergence_line(divergence: Divergence) -> list[str]:
    """Give the cells of a divergence in a table of many."""
    step = divergence.get("step")
    what = clean(divergence.get("cause") or "")
    if detail := divergence.get("detail"):
        what += f": {clean(detail)}"
    return [
        "setup" if step is None or step < 0 else f"step {step}",
        clean(divergence.get("phase") or ""),
        clean(divergence.get("op") or ""),
        clean(divergence.get("module") or ""),
        what,
    ]


def divergence_block(divergence: Divergence) -> list[Line]:
    """Lay out all that is known about one divergence."""
    cause = clean(divergence.get("cause") or "")
    detail = clean(divergence.get("detail") or "")
    lines = field("where", _where(divergence))
    lines += field("operator", clean(divergence.get("op") or "none"))
    if (computes := divergence.get("computes")) and computes != divergence.get("op"):
        lines += field("computes", clean(computes))
    lines += field("what", f"{cause}: {detail}" if detail else cause, style="mark")
    if cause in CAUSES:
        lines += field("", CAUSES[cause])
    lines += _blocks(divergence)
    lines += _evidence(divergence.get("evidence") or {})
    lines += _tensors(divergence.get("tensors") or ())
    lines += _stack(divergence.get("stack") or ())
    return lines


def _where(divergence: Divergence) -> str:
    step = divergence.get("step")
    parts = [] if step is None else ["setup" if step < 0 else f"step {step}"]
    if (phase := divergence.get("phase")) and phase not in parts:
        parts.append(clean(phase))
    if rank := divergence.get("rank"):
        parts.append(f"rank {clean(rank)}")
    if module := divergence.get("module"):
        parts.append(clean(module))
    if divergence.get("side") == "reference":
        parts.append("on the reference's side")
    seen = divergence.get("first_seen_step")
    if seen is not None and seen != step:
        parts.append("first seen in setup" if seen < 0 else f"first seen in step {seen}")
    return ", ".join(parts)


def _blocks(divergence: Divergence) -> list[Line]:
    before, after = divergence.get("before") or [], divergence.get("after") or []
    if list(before) == list(after):
        return []
    rows = max(len(before), len(after))
    cells = [["reference", "candidate"]]
    for row in range(min(rows, MAX_OPERATORS)):
        cells.append([clean(side[row]) if row < len(side) else "" for side in (before, after)])
    if rows > MAX_OPERATORS:
        rest = (f"… {len(side) - MAX_OPERATORS} more" if len(side) > MAX_OPERATORS else "" for side in (before, after))
        cells.append(list(rest))
    return _labelled("operators", cells, head=True)


def _evidence(evidence: Mapping[str, Any]) -> list[Line]:
    rows = []
    for section in ("inputs", "arguments", "outputs"):
        for item in evidence.get(section) or ():
            reference, candidate = _value(item.get("reference")), _value(item.get("candidate"))
            same = item.get("equal", reference == candidate)
            if section == "arguments" and same:
                continue
            rows.append([_name(item), reference, "the same" if same else candidate, clean(item.get("spec") or "")])
    if not rows:
        return []
    left_out = len(rows) - MAX_ROWS
    rows = [["", "reference", "candidate", ""], *rows[:MAX_ROWS]]
    if left_out > 0:
        rows.append([f"… {left_out} more"])
    return _labelled("evidence", rows, head=True)


def _name(item: Mapping[str, Any]) -> str:
    return shorten(clean(item.get("name") or ""), 32)


def _value(value: object) -> str:
    return "none" if value is None else shorten(clean(value), 40)


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> list[Line]:
    rows = [["", "", "different", "max ulp", "max abs"]]
    for tensor in tensors[:MAX_ROWS]:
        shape = ",".join(str(size) for size in tensor.get("shape") or ())
        rows.append(
            [
                _name(tensor),
                f"{clean(tensor.get('dtype') or '')}[{shape}]",
                f"{tensor.get('different', 0):,} of {tensor.get('elements', 0):,}",
                _value(tensor.get("max_ulp")),
                _value(tensor.get("max_abs")),
            ]
        )
    return _labelled("tensors", rows, head=True) if len(rows) > 1 else []


def _stack(stack: Sequence[Mapping[str, Any]]) -> list[Line]:
    rows = []
    for number, frame in enumerate(stack[:MAX_FRAMES]):
        where = shorten(f"{clean(frame.get('file') or '?')}:{clean(frame.get('line') or '?')}", 40)
        source = clean(frame.get("source") or "").strip()
        rows.append([">" if number == 0 else " ", where, clean(frame.get("function") or "", 30), source])
    lines = _labelled("source", rows)
    if lines:
        lines[0] = Line(lines[0].text, "mark")
    if len(stack) > MAX_FRAMES:
        lines.append(Line(" " * LABEL + f"… {len(stack) - MAX_FRAMES} more frames", "dim"))
    return lines


def _labelled(label: str, rows: list[list[str]], *, head: bool = False) -> list[Line]:
    lines = table(rows, head=head)
    if lines:
        lines[0] = Line(f"  {label}".ljust(LABEL) + lines[0].text[LABEL:], lines[0].style)
    return lines
