"""What is true about a pair of runs, found without the rules of the comparison, and whether a verdict says so."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Any

from opguard_ci.compare import compare_traces
from opguard_ci.compare.values import Key, base_name, call_key, full_key
from opguard_ci.trace.model import Event

from .edits import CAUSES, KERNEL, edited, prepared, random_fault
from .programs import Program, random_program
from .running import Fault, MemoryTrace, run

_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True)
class Example:
    """A reference, a candidate with a fault, and the same candidate without it."""

    kind: str
    program: Program
    changed: Program
    fault: Fault
    reference: MemoryTrace
    clean: MemoryTrace
    candidate: MemoryTrace


def example(
    rng: random.Random, kind: str, *, edits: bool, num_nodes: int | None = None, level: str = "full"
) -> Example | None:
    """A random example; None if the program has no place for this fault, or the edits change numbers by themselves."""
    program = random_program(rng, num_nodes)
    place: tuple[Program, int] | None = (program, -1)
    if kind not in (*KERNEL, "lr"):
        place = prepared(rng, kind, program)
        if place is None:
            return None
    prepared_program, number = place
    changed = edited(rng, prepared_program) if edits else prepared_program
    reference = run(program, level=level)
    clean = run(changed, level=level) if edits or changed is not program else reference
    if not same_contract(reference, clean) or not math.isfinite(reference.loss):
        return None
    fault = random_fault(rng, kind, changed, number, _breakable(reference, clean) if kind in KERNEL else [])
    if fault is None:
        return None
    try:
        candidate = run(changed, fault, level)
    except (RuntimeError, ZeroDivisionError):  # an optimizer with a zeroed or negated step count
        return None
    return Example(kind, program, changed, fault, reference, clean, candidate)


def _breakable(reference: MemoryTrace, clean: MemoryTrace) -> list[tuple[int, str]]:
    """The operators that the reference calls too, and that return floats."""
    known = {(e.step, call_key(e)) for e in reference.events() if e.kind == "op"}
    return [
        (e.index, e.op)
        for e in clean.events()
        if e.kind == "op" and (e.step, call_key(e)) in known and any("float" in w.spec for w in e.writes)
    ]


def node_of(event: Event | None) -> int | None:
    """The number of the node whose module an event belongs to."""
    found = _NUMBER.search(event.module or "") if event is not None else None
    return int(found.group()) if found else None


def same_contract(one: MemoryTrace, other: MemoryTrace) -> bool:
    """Whether all values that fail a comparison are equal, in the order of the parameters."""
    return _contract(one) == _contract(other)


def _reached(one: MemoryTrace, other: MemoryTrace) -> int:
    """The first step with a value that fails a comparison, -1 without one: what is skipped in every step may have no
    effect in the steps before.
    """
    pairs = zip(_contract(one), _contract(other), strict=False)
    return min((mine[0] for mine, its in pairs if mine != its), default=-1)


def _contract(trace: MemoryTrace) -> list[tuple[int, str, int]]:
    return [(e.step, e.op, e.reads[0].value) for e in trace.events() if e.kind == "contract" and e.op != "gradient"]


@dataclass(frozen=True, slots=True)
class Truth:
    """Where two runs of one program part: the events that may be named, by side; empty if nothing differs."""

    candidate: tuple[Event, ...] = ()
    reference: tuple[Event, ...] = ()


def truth(case: Example) -> Truth:
    """The first operators that did something else than in the clean run, by their order alone."""
    clean = [e for e in case.clean.events() if e.kind in ("op", "copy")]
    faulty = [e for e in case.candidate.events() if e.kind in ("op", "copy")]
    if case.kind == "draw":
        return Truth(candidate=tuple(e for e in faulty if e.draw and node_of(e) == case.fault.node)[:1])
    if case.kind == "skip":
        steps = [e for e in clean if e.step >= case.fault.step and node_of(e) == case.fault.node]
        skipped = [e for e in steps if e.phase == "forward" and (e.kind == "op" or e.writes[0].slot < 0)]
        reached = _reached(case.reference, case.candidate)
        first = [e for e in skipped if e.step <= max(reached, skipped[0].step)]
        return Truth(reference=tuple(first), candidate=_readers(case, faulty))
    done = {(e.step, full_key(e)) for e in case.reference.events()}
    for mine, other in zip(clean, faulty, strict=False):
        if mine.op != other.op:
            return Truth((other,), (mine,))
        if other.kind != "op" or _calls(mine) == _calls(other):
            continue
        moved = case.kind in ("operand", "swapped") and (other.step, full_key(other)) in done
        if moved:  # the reference makes this call too, elsewhere
            continue
        if case.kind in ("operand", "swapped") and _results(mine) != _results(other):
            return Truth((*_misled(case, faulty, done), *_readers(case, faulty)), (mine,))
        if case.kind == "foreign" or _results(mine) != _results(other):
            return Truth((other, *_readers(case, faulty)), (mine,))
    return Truth()


def _misled(case: Example, faulty: list[Event], done: set[tuple[int, Key]]) -> tuple[Event, ...]:
    """The calls of a node that was given another operand: in the first step, and in the first in which the reference
    does not make the same calls elsewhere.
    """
    mine = [e for e in faulty if node_of(e) == case.fault.node and e.phase == "forward" and e.step >= case.fault.step]
    own = [e for e in mine if e.kind == "copy" or (e.step, full_key(e)) not in done]
    return tuple(e for e in mine if e.step in (case.fault.step, own[0].step if own else case.fault.step))


def _readers(case: Example, faulty: list[Event]) -> tuple[Event, ...]:
    """What reads memory into which the faulty node copied: copies themselves are nobody's origin."""
    if case.fault.node < 0 or case.changed.node(case.fault.node).op != "slices":
        return ()
    step = min(e.step for e in faulty if e.step >= case.fault.step and node_of(e) == case.fault.node)
    copies = {e.index for e in faulty if e.kind == "copy" and e.step == step and node_of(e) == case.fault.node}
    for event in faulty:
        if event.kind == "copy" and any(copies & set(read.writers) for read in event.reads):
            copies.add(event.index)
    return tuple(e for e in faulty if e.kind == "op" and any(copies & set(read.writers) for read in e.reads))


def _calls(event: Event) -> tuple[Any, ...]:
    draw = event.draw and (event.draw.before, event.draw.after)
    return (event.op, event.args, tuple(read.value for read in event.reads), _results(event), draw)


def _results(event: Event) -> tuple[Any, ...]:
    return tuple((write.value, write.slot) for write in event.writes)


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a verdict did."""

    outcome: str  # masked (nothing to find), right, or what is wrong: cause, place, verdict, crash
    reached: bool
    text: str = ""


def judge(case: Example) -> Judgement:
    """Whether the verdict about an example names the fault, and nothing else."""
    verdict = compare_traces(case.reference, case.candidate).to_json()
    true = truth(case)
    reached = not same_contract(case.reference, case.candidate)
    if reached != (verdict["verdict"] == "diverged"):
        return Judgement("verdict", reached, verdict["verdict"])
    structural = true.candidate and true.reference and true.candidate[0].op != true.reference[0].op
    if not reached and (not true.candidate or case.kind == "skip" or structural):  # left out: it cannot be listed
        return Judgement("masked" if verdict["verdict"] in ("identical", "equivalent") else "verdict", reached)
    named = [verdict["first_divergence"]] if reached else verdict["transient"]
    unequal = [item for item in named if item["cause"] in ("kernel", "arguments") and not _same_inputs(item)]
    if unequal:
        return Judgement("cause", reached, f"inputs are not shown equal: {_said(unequal[0])}")
    text = f"wanted {_short(true.reference)} / {_short(true.candidate)}; said " + "; ".join(map(_said, named))
    places = [item for item in named if _is_place(case, item, true)]
    if not places:
        return Judgement("place", reached, text)
    if not any({item["cause"], *item.get("one_of", ())} & _causes(case, true) for item in places):
        return Judgement("cause", reached, text)
    return Judgement("right", reached, text)


def _causes(case: Example, true: Truth) -> frozenset[str]:
    causes = CAUSES[case.kind]
    if case.kind == "lr" and case.program.foreach != case.changed.foreach:
        causes |= {"code"}  # another operator: its arguments cannot be compared
    if 0 < case.fault.node < 1000 and case.program.node(case.fault.node).op == "foreach" and _is_rewritten(case):
        causes |= {"code"}
    done = {(e.step, full_key(e)) for e in case.candidate.events()}
    if case.kind == "settings" and any((e.step, full_key(e)) in done for e in true.reference):
        causes |= {"code"}  # an edit made the reference's call a second time: one with other arguments was added
    if case.kind == "foreign" and case.program.from_numpy:
        causes |= {"data"}  # memory that is not torch's may change at any time
    return causes


def _same_inputs(item: dict[str, Any]) -> bool:
    """Whether the evidence shows the same inputs on both sides."""
    return all(row["equal"] and row["reference"] == row["candidate"] for row in item["evidence"]["inputs"])


def _is_rewritten(case: Example) -> bool:
    """Whether the faulty node is a loop in one program and one operator in the other."""
    return case.program.node(case.fault.node).settings != case.changed.node(case.fault.node).settings


def _is_place(case: Example, item: dict[str, Any], true: Truth) -> bool:
    """Whether an object of the verdict is about an operator at which the runs part."""
    if item["side"] == "candidate":
        if any(item["event"] == event.index or _computes(item, event) for event in true.candidate):
            return True
    else:
        event = next(e for e in case.reference.events() if e.index == item["event"])
        if any(_key(event) == _key(other) for other in true.reference):
            return True
    if case.kind == "replaced":
        trace = case.candidate if item["side"] == "candidate" else case.reference
        event = next(e for e in trace.events() if e.index == item["event"])
        return node_of(event) == case.fault.node and event.step == case.fault.step
    return False


def _computes(item: dict[str, Any], event: Event) -> bool:
    """Whether a block of other code is said to make a new value first in this event."""
    written = [row["candidate"] for row in item["evidence"]["outputs"]]
    return item.get("computes") == event.op and written == [f"{write.value:016x}" for write in event.writes]


def _key(event: Event) -> tuple[Any, ...]:
    return (event.step, event.phase, base_name(event.op), node_of(event), event.args)


def _short(events: tuple[Event, ...]) -> str:
    return ", ".join(f"#{e.index} {e.op} n{node_of(e)} {e.phase} step {e.step}" for e in events)


def _said(item: dict[str, Any]) -> str:
    where = f"{item['op']} {item['module']} {item['phase']} step {item['step']}"
    return f"{item['cause']} #{item['event']} {where} ({item['side']}): {item['detail']}"
