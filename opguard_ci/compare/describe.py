"""A cause as the object that reports show: place, evidence, blocks, stack. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

from ..trace.model import HIDDEN, NO_VALUE, OVER, UNREAD, Event
from .arguments import argument_name, split_arguments
from .cause import Cause
from .draws import DrawChange
from .judge import Judge
from .values import base_name

_MAX_BLOCK: Final = 40
_MAX_NAMES: Final = 6


def describe_event(cause: Cause, step: int | None = None) -> dict[str, Any]:
    """The object of a cause without the other side."""
    event = cause.event
    where = event.step if step is None else step
    found: dict[str, Any] = {
        "step": where,
        "rank": 0,
        "phase": event.phase,
        "op": event.op,
        "module": event.module,
        "side": cause.side,
        "cause": cause.cause,
        "detail": cause.detail,
        "first_seen_step": where,
        "before": [],
        "after": [event.op],
        "stack": frames(event.stack),
        "tensors": [],
        "event": event.index,
    }
    if event.kind == "contract":
        found["value"] = event.args
    return found


def describe_cause(cause: Cause, judge: Judge, step: int | None = None) -> dict[str, Any]:
    """The object of a cause, with the evidence of both sides."""
    found = describe_event(cause, step)
    if cause.computes is not None:
        found["computes"] = cause.computes.op
    before = [e.op for e in cause.before[:_MAX_BLOCK]] if cause.before else [cause.like.op] if cause.like else []
    after = [e.op for e in cause.after[:_MAX_BLOCK]] or [cause.event.op]
    if cause.side == "reference":
        before, after = [cause.event.op], [cause.like.op] if cause.like else []
    found["before"], found["after"] = before, after
    found["events"] = dict(zip(("reference", "candidate"), _counterparts(cause), strict=True))
    found["evidence"] = _evidence(cause)
    if cause.draw is not None:
        found["draw"] = _draw(cause.draw)
    if cause.one_of:
        found["one_of"] = list(cause.one_of)
    if not found["detail"]:
        found["detail"] = _detail(cause, judge)
    return found


def _draw(change: DrawChange) -> dict[str, Any]:
    """Who made the draw that differs, and the first ones that see another state for it."""
    reference, candidate = change.shifted
    return {
        "what": change.what,
        "by": None if change.what == "state" else _who(change.event),
        "shifted": {"reference": _who(reference), "candidate": _who(candidate)},
    }


def _who(event: Event | None) -> dict[str, Any] | None:
    if event is None:
        return None
    return {
        "step": event.step,
        "phase": event.phase,
        "op": event.op,
        "module": event.module,
        "outputs": [write.spec for write in event.writes],
        "event": event.index,
        "stack": frames(event.stack)[:1],
    }


def _counterparts(cause: Cause) -> tuple[int | None, int | None]:
    """The events of reference and candidate whose tensors show how much differs.

    Those at which the runs part; for replaced operators that have no counterpart, the last ones of the two blocks, if
    they have like results.
    """
    mine, other = cause.computes or cause.event, cause.like
    if cause.cause == "code" and cause.side == "candidate" and (other is None or not _alike(mine, other)):
        ends = cause.before[-1:] + cause.after[-1:]
        if len(ends) == 2 and _alike(*ends):
            other, mine = ends
    numbers = (mine.index, None if other is None else other.index)
    return numbers if cause.side == "reference" else numbers[::-1]


def _alike(mine: Event, other: Event) -> bool:
    return bool(mine.writes) and [w.spec for w in mine.writes] == [w.spec for w in other.writes]


def frames(stack: str | None) -> list[dict[str, Any]]:
    """The frames of a recorded stack, innermost first."""
    found = []
    for line in (stack or "").split("\n"):
        parts = line.split("\t")
        if len(parts) == 4:
            found.append({"file": parts[0], "line": int(parts[1]), "function": parts[2], "source": parts[3]})
    return found


def _hex(value: int) -> str | None:
    return None if value == NO_VALUE else f"{value:016x}"


def _evidence(cause: Cause) -> dict[str, Any]:
    """Fingerprints and arguments of both sides of the event at which they part."""
    event = cause.computes or cause.event
    like = cause.like
    reference, candidate = (event, like) if cause.side == "reference" else (like, event)
    is_contract = event.kind == "contract"  # whose argument text is its name

    def name_of(number: int) -> str:
        return event.args if is_contract else argument_name(event.args, number)

    return {
        "inputs": _tensors(_reads(reference), _reads(candidate), name_of),
        "arguments": [] if is_contract else _arguments(reference, candidate),
        "outputs": _tensors(_writes(reference), _writes(candidate), name_of),
        "generator": _generator(reference, candidate),
    }


def _reads(event: Event | None) -> list[tuple[str, int, str, bool]]:
    if event is None:
        return []
    return [(str(n), r.value, r.spec, bool(r.flags & OVER)) for n, r in enumerate(event.reads) if not r.flags & UNREAD]


def _writes(event: Event | None) -> list[tuple[str, int, str, bool]]:
    if event is None:
        return []
    return [
        (f"output {w.slot}" if w.slot >= 0 else str(~w.slot), w.value, w.spec, bool(w.flags & HIDDEN))
        for w in event.writes
    ]


def _tensors(
    reference: list[tuple[str, int, str, bool]],
    candidate: list[tuple[str, int, str, bool]],
    name_of: Callable[[int], str],
) -> list[dict[str, Any]]:
    left, right = {item[0]: item for item in reference}, {item[0]: item for item in candidate}
    rows = []
    for key in dict.fromkeys([*left, *right]):
        mine, other = right.get(key), left.get(key)
        shown = mine or other
        assert shown is not None
        row: dict[str, Any] = {
            "name": name_of(int(key)) if key.isdigit() else key,
            "reference": _hex(other[1]) if other else None,
            "candidate": _hex(mine[1]) if mine else None,
            "equal": bool(mine and other and mine[1] == other[1]),
            "spec": shown[2],
        }
        if mine and other and mine[2] != other[2]:
            row["reference_spec"] = other[2]
        if (mine and mine[3]) or (other and other[3]):
            row["changed_behind"] = True
        rows.append(row)
    return rows


def _arguments(reference: Event | None, candidate: Event | None) -> list[dict[str, Any]]:
    left = split_arguments(reference.args) if reference is not None else {}
    right = split_arguments(candidate.args) if candidate is not None else {}
    return [
        {
            "name": name,
            "reference": left.get(name),
            "candidate": right.get(name),
            "equal": left.get(name) == right.get(name),
        }
        for name in dict.fromkeys([*left, *right])
        if "%" not in (left.get(name) or "") + (right.get(name) or "")
    ]


def _generator(reference: Event | None, candidate: Event | None) -> dict[str, str | None]:
    def state(event: Event | None) -> str | None:
        return None if event is None or event.draw is None else _hex(event.draw.before)

    return {"reference": state(reference), "candidate": state(candidate)}


def _detail(cause: Cause, judge: Judge) -> str:
    """One phrase that says what differs."""
    event = cause.event
    if cause.cause == "code":
        return _code_detail(cause)
    if cause.operand is None:
        return ""
    name = event.args if event.kind == "contract" else argument_name(event.args, cause.operand)
    spec = event.reads[cause.operand].spec
    if cause.cause == "overwritten":
        return f"{name} {spec} changed since it was last written, by no recorded operator"
    if cause.cause == "uninitialised":
        return f"{name} {spec} holds memory that nobody wrote"
    if cause.views:
        return f"{name} {spec} is another view of the same tensor: {cause.views}"
    same = _same_value_elsewhere(cause, judge)
    return f"{name} {spec} is another value{same}"


def _same_value_elsewhere(cause: Cause, judge: Judge) -> str:
    """Where the other run has the operand's value: a batch in another order, a stale buffer."""
    assert cause.operand is not None
    value = cause.event.reads[cause.operand].value
    other = judge.reference if cause.side == "candidate" else judge.candidate
    for step in other.steps:
        if step != cause.event.step and other.view(step).knows(value):
            where = "setup" if step < 0 else f"step {step}"
            return f"; the other run has it in {where}"
    return ""


def _listed(names: list[str]) -> str:
    """Names in order, those that repeat counted: ``addmm (8 times), cat``."""
    runs = [(name, sum(1 for _ in run)) for name, run in groupby(names)]
    shown = [name if number == 1 else f"{name} ({number} times)" for name, number in runs[:_MAX_NAMES]]
    return ", ".join([*shown, "…"] if len(runs) > _MAX_NAMES else shown)


def _code_detail(cause: Cause) -> str:
    blocks = (cause.before, cause.after)
    sides = [[base_name(e.op) for e in events] for events in blocks]
    if sides[0] == sides[1]:
        sides = [[e.op for e in events] for events in blocks]
    if sides[0] == sides[1]:
        sides = [[write.spec for e in events for write in e.writes] for events in blocks]
    if sides[0] == sides[1]:
        sides = [[f"{base_name(e.op)}({e.args})" for e in events] for events in blocks]
    before, after = map(_listed, sides)
    return f"{before} replaced by {after}" if before else f"{after} inserted"
