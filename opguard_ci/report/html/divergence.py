"""One divergence: where and why, by which evidence, from which line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.divergence import step_name
from opguard_ci.report.html.build import Content, Html, el, join, number, operator
from opguard_ci.report.words import CAUSES

MAX_ROWS: Final = 24
MAX_FRAMES: Final = 20
MAX_OPERATORS: Final = 40

Divergence = Mapping[str, Any]


def divergence(found: Divergence) -> Html:
    """All that is known about one divergence, but for its tensors."""
    return el(
        "div",
        el("div", _what(found), _source(_list(found.get("stack"))), class_="columns"),
        _blocks(found),
        _evidence(found.get("evidence")),
    )


def headline(found: Divergence) -> Html:
    """The operator, or the contract value that none explains, and its module in one line."""
    module, value = found.get("module"), found.get("value")
    return join(
        el("span", value, class_="name") if value else operator(found.get("op") or "the contract"),
        [" in ", el("span", module, class_="module")] if module else None,
    )


def place(found: Divergence) -> str:
    """Step, phase and side in words."""
    step, phase = step_name(found.get("step")), found.get("phase")
    parts = [step] if not phase or phase == step else [step, str(phase)]
    if found.get("rank"):
        parts.append(f"rank {found['rank']}")
    if found.get("side") == "reference":
        parts.append("on the reference's side")
    seen = found.get("first_seen_step")
    if seen is not None and seen != found.get("step"):
        parts.append(f"first seen in {step_name(seen)}")
    return ", ".join(parts)


def cause(found: Divergence) -> Html:
    """The cause and its detail."""
    detail = found.get("detail")
    return join(el("span", found.get("cause"), class_="cause"), [" ", el("code", detail)] if detail else None)


def _list(value: object) -> list[Any]:
    """The objects of a list: findings come from a manifest that anybody may have written."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def _what(found: Divergence) -> Html:
    name = str(found.get("cause"))
    what = "value" if found.get("value") else "operator"
    rows: list[tuple[str, Content]] = [("where", place(found)), (what, headline(found))]
    if found.get("computes") and found["computes"] != found.get("op"):
        rows.append(("computes", operator(found["computes"])))
    rows.append(("what", cause(found)))
    is_told = name in CAUSES and not (found.get("value") and name == "state")  # no operator read it
    meaning = el("p", CAUSES[name], class_="dim") if is_told else None
    return el("div", facts(rows), meaning)


def facts(rows: Sequence[tuple[str, Content]]) -> Html:
    """A list of names and what belongs to them."""
    return el("dl", [join(el("dt", name), el("dd", value)) for name, value in rows], class_="facts")


def _source(stack: Sequence[Mapping[str, Any]]) -> Html | None:
    """The user's own lines, innermost first."""
    if not stack:
        return None
    frames = []
    for depth, frame in enumerate(stack[:MAX_FRAMES]):
        where = f"{frame.get('file')}:{frame.get('line')}"
        source = str(frame.get("source") or "").strip()
        head = el("div", el("b", where), " ", el("span", frame.get("function"), class_="dim"))
        frames.append(el("li", head, el("code", source) if source else None, class_="frame" if depth else "frame here"))
    rest = len(stack) - MAX_FRAMES
    return el("ol", frames, el("li", f"… {rest} more frames", class_="dim") if rest > 0 else None, class_="stack")


def _blocks(found: Divergence) -> Html | None:
    """The operators that stand for each other, where there is more than the one."""
    sides = [[str(op) for op in found.get(key) or () if isinstance(op, str)] for key in ("before", "after")]
    if sides[0] == sides[1] or all(op == found.get("op") for side in sides for op in side):
        return None
    shown = [
        el("div", el("h4", name), el("ul", [el("li", operator(op)) for op in side[:MAX_OPERATORS]], class_="ops")
           if side else el("p", "nothing", class_="dim"))
        for name, side in zip(("reference", "candidate"), sides, strict=True)
    ]  # fmt: skip
    return el("div", shown, class_="columns")


def _evidence(evidence: object) -> Html | None:
    if not isinstance(evidence, Mapping):
        return None
    rows: list[tuple[Mapping[str, Any], str, bool]] = []
    for kind in ("inputs", "arguments", "outputs"):
        for item in _list(evidence.get(kind)):
            same = bool(item.get("equal", item.get("reference") == item.get("candidate")))
            if kind != "arguments" or not same:
                rows.append((item, str(item.get("name") or ""), same))
    generator = evidence.get("generator")
    if isinstance(generator, Mapping) and generator.get("reference") != generator.get("candidate"):
        rows.append((generator, "generator state", False))
    if not rows:
        return None
    head = el("tr", [el("th", name, scope="col") for name in ("evidence", "reference", "candidate", "")])
    rest = len(rows) - MAX_ROWS
    more = el("tr", el("td", f"… {rest} more", colspan=4)) if rest > 0 else None
    return el(
        "div",
        el(
            "table",
            el("thead", head),
            el("tbody", [_row(*row) for row in rows[:MAX_ROWS]], more),
            class_="plain evidence",
        ),
        class_="scroll",
    )


def _row(item: Mapping[str, Any], name: str, same: bool) -> Html:
    what = str(item.get("spec") or "")
    if item.get("reference_spec"):
        what = f"{item['reference_spec']} → {what}"
    if item.get("changed_behind"):
        what += ", changed unseen"
    values = [el("code", _value(item.get("reference")))]
    values.append(
        el("span", "the same", class_="dim") if same else el("code", _value(item.get("candidate")), class_="other")
    )
    return el("tr", el("th", name, scope="row"), [el("td", value) for value in values], el("td", what, class_="dim"))


def _value(value: object) -> str:
    return "none" if value is None else number(value) if type(value) is int else str(value)
