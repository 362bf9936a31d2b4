"""How much differs: runs both sides again to the divergence, keeps that event's tensors, and measures them (DESIGN 9).

What is compared are the operands and results of the two calls at which the runs part. Where one side has no such call,
or its tensors are the same, it is the first contract value that differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from opguard_ci.compare.arguments import argument_name
from opguard_ci.compare.verdict import compare_traces
from opguard_ci.errors import UsageError
from opguard_ci.evidence.difference import difference
from opguard_ci.evidence.kept import Kept, read_kept
from opguard_ci.evidence.places import Place, at_places, contract_value, does_the_same, places
from opguard_ci.evidence.rows import rows_in_words
from opguard_ci.trace.model import UNREAD, Event
from opguard_ci.trace.reader import Trace, read_trace
from opguard_ci.worker.commits import Run

MAX_TENSORS: Final = 32
"""So many tensors of an event are measured."""
_SPEC: Final = re.compile(r"(\w+)\[([\d,]*)\]")


class CannotZoomError(UsageError):
    """A side cannot be run again here, so there is nothing to look at."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs.

    ``again`` runs it once more: with a plan of ``capture.keep``, or (None) to its end in another process than the
    recorded run's. ``recorded_here`` False: the trace is a golden's, so a repeat that gives other values says nothing
    about the target.
    """

    name: str
    trace: Trace
    again: Callable[[Path | None], Run]
    recorded_here: bool = True


@dataclass(slots=True)
class Zoomed:
    """What was kept of the divergence: the call of each side that has one, and the contract value that was compared."""

    calls: dict[str, Kept] = field(default_factory=dict)
    values: dict[str, Kept] = field(default_factory=dict)


class UnlikeError(Exception):
    """A repeat did something else at the divergence than its trace says."""


def zoom(document: dict[str, Any], reference: Side, candidate: Side, folder: Path) -> Zoomed:
    """Measure the first divergence of a ``compare`` object: fills its ``tensors``, and says what could not be compared.

    A side that does not repeat itself makes the verdict ``unstable``. ``folder`` takes the tensors.

    Raises:
        CannotZoomError: A side could not be run again in the environment of its trace.

    """
    first = document["first_divergence"]
    calls = _calls(first, reference, candidate)
    values = {} if _differ(calls) else _values(document, reference, candidate)
    kept = Zoomed()
    for side in (reference, candidate):
        wanted = [each[side.name] for each in (calls, values) if side.name in each]
        if not wanted:
            continue
        try:
            found = repeat(side, wanted, folder / side.name, first["rank"])
        except UnlikeError as unlike:
            _unlike(document, side, str(unlike))
            return kept
        for place, event in zip(wanted, found, strict=True):
            (kept.values if place.lane is None else kept.calls)[side.name] = event
    rows = _rows(calls, kept.calls) if _differ(calls) else _value_rows(values, kept.values)
    first["tensors"] = rows[:MAX_TENSORS]
    _say_which_rows(first)
    if not rows:
        document["notes"].append("Not zoomed: no two tensors of the divergence, or of the contract, can be compared.")
    if len(rows) > MAX_TENSORS:
        document["notes"].append(f"{len(rows) - MAX_TENSORS} more tensors of the operator differ.")
    return kept


def _say_which_rows(first: dict[str, Any]) -> None:
    """Of data that differs: which rows, or that only their order does."""
    if first["cause"] not in ("data", "inputs"):
        return
    batches = [tensor for tensor in first["tensors"] if "rows" in tensor and tensor["role"] != "contract"]
    if batches:  # samples that are stacked say less than the batch that they come to
        batch = max(batches, key=lambda tensor: len(tensor["shape"]))
        first["detail"] = "; ".join(filter(None, [first["detail"], rows_in_words(batch["rows"])]))


# What to look at


def _calls(first: dict[str, Any], reference: Side, candidate: Side) -> dict[str, Place]:
    """The calls of both sides, as far as they have one."""
    found = {}
    for side in (reference, candidate):
        index = (first.get("events") or {}).get(side.name)
        place = places(side.trace, [index], first["rank"]).get(index) if index is not None else None
        if place is not None and place.lane is not None:
            found[side.name] = place
    return found


def _differ(calls: dict[str, Place]) -> bool:
    """Whether both sides have a call and some tensor of it is another."""
    if len(calls) < 2:
        return False
    mine, other = (calls[name].event for name in ("reference", "candidate"))
    left, right = values_of(mine), values_of(other)
    names = left.keys() & right.keys()
    return any(left[name] != right[name] for name in names if mine.op == other.op or name.startswith("output"))


def values_of(event: Event) -> dict[str, tuple[int, str]]:
    """Value and spec of each tensor of a call, by its name in what is kept."""
    reads = {f"input {n}": (r.value, r.spec) for n, r in enumerate(event.reads) if not r.flags & UNREAD}
    writes = {f"output {w.slot}" if w.slot >= 0 else f"written {~w.slot}": (w.value, w.spec) for w in event.writes}
    return {**reads, **writes}


def _values(document: dict[str, Any], reference: Side, candidate: Side) -> dict[str, Place]:
    """The first contract value that differs and that both sides have, generator states aside."""
    rank = document["first_divergence"]["rank"]
    for item in document["contract"]:
        if item["equal"] or item.get("rank", rank) != rank:
            continue
        events = [contract_value(side.trace, item["step"], item["name"], rank) for side in (reference, candidate)]
        if any(event is None or event.op == "rng" for event in events):
            continue
        found = {}
        for side, event in zip((reference, candidate), events, strict=True):
            assert event is not None
            found[side.name] = places(side.trace, [event.index], rank)[event.index]
        return found
    return {}


# Running again


def repeat(side: Side, wanted: list[Place], folder: Path, rank: int = 0) -> list[Kept]:
    """Run a side up to the last wanted event of a rank; several ranks run to their end.

    Raises ``UnlikeError`` if it is not the run that the trace tells of.
    """
    folder.mkdir()
    plan = folder / "plan.json"
    calls = [[place.lane, place.number] for place in wanted if place.lane is not None]
    entries = [place.number for place in wanted if place.lane is None]
    plan.write_text(json.dumps({"folder": str(folder), "calls": calls, "entries": entries, "rank": rank}))
    run = side.again(plan)
    if not (run.trace / "manifest.json").exists():
        raise CannotZoomError("cannot-run-again", f"The {side.name} could not be run again: {run.reason}")
    trace = read_trace(run.trace)
    here, there = (each.manifest["environment"]["key"] for each in (trace, side.trace))
    if here != there:
        raise CannotZoomError(
            "cannot-run-again",
            f"The {side.name} was recorded in the environment {there}, and here is {here}: its numbers cannot be had "
            "again.",
        )
    kept = {(entry.get("call") or [None])[0]: event for event in read_kept(folder) for entry in [event.entry]}
    again = at_places(trace, {(place.lane, place.number) for place in wanted}, rank)
    for place in wanted:
        event = again.get((place.lane, place.number))
        if event is None and not run.testable:
            raise CannotZoomError("cannot-run-again", f"The {side.name} could not be run again: {run.reason}")
        if event is None or place.lane not in kept:
            raise UnlikeError("it never came to it")
        if not does_the_same(place.event, event):
            raise UnlikeError(_what_differs(place.event, event))
    return [kept[place.lane] for place in wanted]


def _what_differs(event: Event, other: Event) -> str:
    if (event.kind, event.op) != (other.kind, other.op):
        return f"{other.op} ran in place of {event.op}"
    if event.args != other.args:
        return "its arguments were others"
    mine, others = values_of(event), values_of(other)
    names = [name for name in mine if mine[name] != others.get(name)]
    return f"{names[0]} had another value" if names else "the generator was in another state"


def _unlike(document: dict[str, Any], side: Side, what: str) -> None:
    """A repeat took another course. Whether the side computes something else is for a whole repeat to say."""
    operator = document["first_divergence"]["op"]
    if not side.recorded_here:
        document["notes"].append(
            f"Not zoomed: a run of the golden's commit does not do here what the golden holds ({what})."
        )
        return
    again = side.again(None)
    verdict = compare_traces(side.trace, read_trace(again.trace)) if again.testable else None
    if verdict is None or verdict.verdict != "diverged":
        document["notes"].append(f"Not zoomed: run again, the {side.name} came to {operator} in another way ({what}).")
        return
    document.update(verdict="unstable", first_divergence=verdict.first_divergence)
    document["notes"].append(
        f"The {side.name} does not repeat itself (run again, at {operator} {what}), or what it reads from outside has "
        "changed, so nothing follows from a difference to it; the divergence shown is that between its own two runs."
    )


# Measuring


def _rows(calls: dict[str, Place], kept: dict[str, Kept]) -> list[dict[str, Any]]:
    left, right = (values_of(calls[name].event) for name in ("reference", "candidate"))
    events = [calls[name].event for name in ("reference", "candidate")]
    if events[0].op != events[1].op:  # the ends of two blocks: only what came out can be compared
        left, right = ({n: v for n, v in each.items() if n.startswith("output")} for each in (left, right))
    args = calls["candidate"].event.args
    rows = []
    for name in dict.fromkeys([*left, *right]):
        if left.get(name) == right.get(name):
            continue
        role, _, number = name.partition(" ")
        shown = name if role == "output" else argument_name(args, int(number))
        row: dict[str, Any] = {"name": shown, "role": role}
        if name not in left or name not in right:
            row.update(_bare((left.get(name) or right[name])[1]))
            row["note"] = f"only the {'reference' if name in left else 'candidate'} has it"
        else:
            row.update(_measured(name, kept["reference"], kept["candidate"], right[name][1]))
        rows.append(row)
    return rows


def _value_rows(values: dict[str, Place], kept: dict[str, Kept]) -> list[dict[str, Any]]:
    if not values:
        return []
    event = values["candidate"].event
    row: dict[str, Any] = {"name": event.args, "role": "contract"}
    texts = [kept[name].entry.get("text") for name in ("reference", "candidate")]
    if None not in texts:
        note = f"a number of Python's: {texts[0]} -> {texts[1]}"
        return [{**row, **_bare(event.reads[0].spec), "note": note}]
    return [{**row, **_measured("value", kept["reference"], kept["candidate"], event.reads[0].spec)}]


def _measured(name: str, reference: Kept, candidate: Kept, spec: str) -> dict[str, Any]:
    left, right = reference.content(name), candidate.content(name)
    for side, content in (("reference", left), ("candidate", right)):
        if isinstance(content, str):
            return {**_bare(spec), "note": f"not compared: of the {side}, {content}"}
    assert not isinstance(left, str) and not isinstance(right, str)
    return difference(left, right)


def _bare(spec: str) -> dict[str, Any]:
    """The row of a tensor that is not measured, from its description in the trace."""
    found = _SPEC.match(spec)
    shape = [int(size) for size in found.group(2).split(",") if size] if found else []
    dtype = found.group(1) if found else spec
    return {"dtype": dtype, "shape": shape, "different": None, "elements": None, "max_ulp": None, "max_abs": None}
