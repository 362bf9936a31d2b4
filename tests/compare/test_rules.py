"""The rules of the comparison one by one: the smallest pair of runs that each decides, and that without the rule the
answer would be another. Values are numbers; see ``build``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy as copied
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from opguard_ci.compare import absent, calls, compare_traces, comparison, contract, draws, foreign, judge, operands
from opguard_ci.compare.judge import Judge
from opguard_ci.compare.origin import Leaf, Origin, Origins
from opguard_ci.compare.pairs import Pairs
from opguard_ci.compare.side import Side, StepView
from opguard_ci.compare.values import is_empty
from opguard_ci.trace.model import HIDDEN, HOST, NO_VALUE, OVER, STATE, WEAK, Event, Write

from . import build
from .build import copy, loss, op, read, trace, weak
from .running import MemoryTrace

Patch = Callable[[pytest.MonkeyPatch], None]
Said = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Two runs, what is to be said about them, and how to switch the rule off."""

    runs: tuple[MemoryTrace, MemoryTrace]
    said: Said
    off: Patch


def _set(owner: Any, name: str, value: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, value)


def _both(one: Any, other: Any, name: str, value: Any) -> Patch:
    def off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(one, name, value)
        patch.setattr(other, name, value)

    return off


def said(runs: tuple[MemoryTrace, MemoryTrace]) -> Said:
    """(verdict, cause, event, side), the events that passed, and the number of notes."""
    found = compare_traces(*runs)
    one = found.first_divergence or {}
    passing = tuple(item["event"] for item in found.transient)
    return (found.verdict, one.get("cause"), one.get("event"), one.get("side"), passing, len(found.notes))


def diverged(cause: str, event: int, side: str = "candidate", passing: Iterable[int] = ()) -> Said:
    return ("diverged", cause, event, side, tuple(passing), 0)


def passed(name: str = "equivalent", passing: Iterable[int] = (), notes: int = 0) -> Said:
    return (name, None, None, None, tuple(passing), notes)


# Mutants: the rules with a part left out


def _new_without(part: str) -> Callable[[Origins, int], Any]:
    def is_new(self: Origins, event: Event) -> bool:
        view, base = self.other.view(event.step), event.op.split(".")[1]
        for write in event.writes:
            if part != "hidden" and write.flags & HIDDEN and base not in view.hidden:
                return True
            if write.value == NO_VALUE or is_empty(write.spec):
                continue
            if part != "unknown" and not view.knows(write.value):
                return True
            if part != "weak" and write.flags & WEAK and write.value not in view.made(base):
                return True
        return part != "contra" and self.contra(event)

    return lambda self, step: np.array([e.computes and is_new(self, e) for e in self.mine.view(step).events], np.bool_)


def _known_everywhere(patch: pytest.MonkeyPatch) -> None:
    original = Side.view

    def view(self: Side, step: int) -> StepView:
        found = copied(original(self, step))
        found.known = np.unique(np.concatenate([original(self, s).known for s in self.steps]))
        return found

    patch.setattr(Side, "view", view)


def _no_hidden_in_any_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepView, "hidden", frozenset())


def _status_without(kind: str) -> Patch:
    """Leaves of one kind count as clean."""
    original = Origins.status

    def status(self: Origins, event: Event, item: Any) -> tuple[str, list[Event], Leaf | None]:
        found = original(self, event, item)
        return ("clean", [], None) if found[2] is not None and found[2].kind == kind else found

    return _set(Origins, "status", status)


def _blind_to_copies(self: Origins, item: Any) -> tuple[list[Event], bool, bool]:
    writers = list(self.mine.writers(item))
    return [w for w in writers if w.kind == "op"], any(w.kind == "alloc" for w in writers), bool(item.flags & OVER)


def _origin_despite_dirty_reads(self: Origins, event: Event) -> Origin | None:
    return Origin(event, None, False) if event.kind == "op" and self.new(event) else None


def _all_departures(self: Origins, sinks: Iterable[Event]) -> list[Origin]:
    return [origin for step in self.mine.steps for origin in self.all_in(step)]


def _at_once(steps: Iterable[tuple[int, list[Any]]], *, same_steps: bool) -> tuple[int | None, list[Any], list[str]]:
    return *next(((step, hard) for step, hard in steps if hard), (None, [])), []


GOOD = [op("f", [10], [20]), op("g", [20], [30]), loss(30)]
"""Two operators and a loss."""


def _groups(*calls: tuple[int, int], new: int = 30) -> list[Event]:
    """Updates of parameters of four shapes, by (number, rate), that leave ``new`` and the next ones."""
    made = []
    for number, rate in calls:
        spec = f"float32[{number + 5},8]"
        write = Write(new + number if number else 30, spec, ~0, 0)
        made.append(op("add_", [20 + number, 10 + number], [write], extra=f"lr={rate}", spec=spec))
    values = (build.contract("parameter", f"p{number}", new + number if number else 30) for number, _ in calls)
    return [*made, *values]


MADE = [op("r", [5], [10]), op("s", [5], [11])]
"""Two values that operators made."""


USE_OF_FIRST = op("g", [10, read(12, writers=(0,))], [30])


def _in_turn(*calls: tuple[int, int, int]) -> list[Event]:
    """Calls of one operator, by (input, argument, output)."""
    return [op("g", [mine], [made], extra=f"k={argument}") for mine, argument, made in calls]


GS = _in_turn((10, 1, 20), (11, 1, 21))

FILLED = op("fill", [9], [Write(9, build.SPEC, ~0, 0)])
"""A part of some memory, written in place."""


def _view(value: int, shown: int, writers: tuple[int, ...] | None = None) -> Event:
    """A view of a value that shows another."""
    return op("select", [read(value, writers=writers)], [shown], kind="view", extra=f"index={shown}")


def _draw(value: int, state: int, shape: str) -> Event:
    """Random numbers of a shape from a generator state."""
    return op("rand", [], [value], draw=(state, state + 1), spec=f"float32{shape}")


INTO_FIRST = Write(21, build.SPEC, ~0, 0)
"""21 written in place into the first argument."""


def _pair(
    reference: list[Event] | list[list[Event]], candidate: list[Event] | list[list[Event]]
) -> tuple[MemoryTrace, MemoryTrace]:
    def steps(events: Any) -> list[list[Event]]:
        return events if isinstance(events[0], list) else [events]

    return trace(*steps(reference)), trace(*steps(candidate))


RULES: dict[str, Rule] = {
    "2: a value of another step proves nothing": Rule(
        _pair(
            [[op("f", [10], [20]), loss(20)], [op("f", [11], [21]), loss(21)]],
            [[op("f", [10], [20]), loss(20)], [op("f", [10], [20]), loss(20)]],
        ),
        diverged("data", 2),
        _known_everywhere,
    ),
    "3: the same call with another result is new, though its value exists": Rule(
        _pair(
            [op("f", [10], [20]), op("f", [11], [21]), op("g", [10, 20], [30]), loss(30)],
            [op("f", [10], [21]), op("f", [11], [21]), op("g", [10, 21], [31]), loss(31)],
        ),
        diverged("kernel", 0),
        _set(Origins, "contra", lambda self, event: False),
    ),
    "3: a value that the other run does not have is new": Rule(
        _pair(GOOD, [op("f", [10], [20]), op("h", [20], [31]), loss(31)]),
        diverged("code", 1),
        _set(Origins, "_new_rows", _new_without("unknown")),
    ),
    "3: a weak value is new if the same operator never made it": Rule(
        _pair(
            [op("sum", [10], [weak(12)]), op("max", [10], [weak(13)]), USE_OF_FIRST, loss(30)],
            [op("sum", [10], [weak(12)]), op("min", [10], [weak(12)]), USE_OF_FIRST, loss(30)],
        ),
        passed(passing=[1]),
        _set(Origins, "_new_rows", _new_without("weak")),
    ),
    "3: a weak value that the same call of the other run read is not new": Rule(
        _pair(
            [op("tensor", [], [weak(12)]), op("g", [10, 12], [30]), op("h", [30, 12], [40], extra="k=1"), loss(40)],
            [op("arange", [], [weak(12)]), op("g", [10, 12], [30]), op("h", [30, 12], [41], extra="k=2"), loss(41)],
        ),
        diverged("arguments", 2),
        _set(Origins, "_is_confirmed", lambda self, event, value: False),
    ),
    "3: a hidden write is new": Rule(
        _pair(
            [op("c", [10, 11], [20]), op("g", [20, 12], [30]), loss(30)],
            [op("c", [10, 11], [20, Write(12, build.SPEC, ~1, HIDDEN)]), op("g", [20, 12], [30]), loss(30)],
        ),
        passed(passing=[0]),
        _set(Origins, "_new_rows", _new_without("hidden")),
    ),
    "3: a hidden write that the other run makes too is not new": Rule(
        _pair(
            [op("norm", [10, 11], [20, Write(12, build.SPEC, ~1, HIDDEN)], extra="eps=1"), loss(20)],
            [op("norm", [10, 11], [21, Write(13, build.SPEC, ~1, HIDDEN)], extra="eps=2"), loss(21)],
        ),
        diverged("arguments", 0),
        _no_hidden_in_any_run,
    ),
    "4: bytes that changed unseen are overwritten memory": Rule(
        _pair(GOOD, [op("f", [10], [20]), op("g", [read(21, OVER, writers=(0,))], [31]), loss(31)]),
        diverged("overwritten", 1),
        _status_without("overwritten"),
    ),
    "4: a copy passes the mark of overwritten bytes on": Rule(
        _pair(
            [op("f", [10], [20]), op("clone", [20], [20], kind="copy"), op("g", [20], [30]), loss(30)],
            [
                op("f", [10], [20]),
                op("clone", [read(21, OVER, writers=(0,))], [21], kind="copy"),
                op("g", [21], [31]),
                loss(31),
            ],
        ),
        diverged("overwritten", 2),
        _set(Origins, "_behind", _blind_to_copies),
    ),
    "4: memory into which as much was written as is read counts as written": Rule(
        _pair(
            [op("cat", [10, 11], [20]), op("f", [20], [30]), loss(30)],
            [
                op("empty", [], [NO_VALUE], kind="alloc"),
                copy(read(10, spec="float32[8,4]"), NO_VALUE),
                copy(read(11, spec="float32[8,4]"), NO_VALUE),
                op("f", [read(21, writers=(0, 1, 2))], [31]),
                loss(31),
            ],
        ),
        diverged("code", 1),
        _set(Origins, "_may_be_covered", lambda self, item: False),
    ),
    "4: memory that nobody wrote is uninitialised": Rule(
        _pair(
            [op("zeros", [], [20]), op("g", [20], [30]), loss(30)],
            [op("empty", [], [NO_VALUE], kind="alloc"), op("g", [read(21, writers=(0,))], [31]), loss(31)],
        ),
        diverged("uninitialised", 1),
        _status_without("uninitialised"),
    ),
    "4: a weak value with a new producer is dirty": Rule(
        _pair(
            [op("sum", [10], [weak(12)]), op("max", [11], [weak(13)]), op("g", [10, 12], [30]), loss(30)],
            [
                op("min", [10], [weak(13)]),
                op("max", [11], [weak(13)]),
                op("g", [10, read(13, writers=(0,))], [31]),
                loss(31),
            ],
        ),
        diverged("code", 0),
        _set(Origins, "_weak", lambda self, view, event, item: False),
    ),
    "4: copies pass a new value on": Rule(
        _pair(
            [op("f", [10], [20]), op("clone", [20], [20], kind="copy"), op("g", [20], [30]), loss(30)],
            [op("h", [10], [21]), op("clone", [21], [21], kind="copy"), op("g", [21], [31]), loss(31)],
        ),
        diverged("code", 0),
        _set(Origins, "_behind", _blind_to_copies),
    ),
    "5: what only passes a departure on is no origin": Rule(
        _pair(
            [op("f", [10], [20]), op("g", [20], [30]), op("k", [10], [40]), loss(40)],
            [op("h", [10], [21]), op("g", [21], [31]), op("k", [10], [40]), loss(40)],
        ),
        passed(passing=[0]),
        _set(Origins, "origin", _origin_despite_dirty_reads),
    ),
    "5: the origin of a leaf is its first reader, though it made nothing new": Rule(
        _pair(
            [op("f", [10], [20]), op("k", [12], [20]), op("g", [10, 20], [30]), loss(30)],
            [op("f", [11], [20]), op("k", [12], [20]), op("g", [11, 20], [31]), loss(31)],
        ),
        diverged("data", 0),
        _set(Origins, "_leaf_readers", lambda self, step: {}),
    ),
    "6: gradients alone do not fail": Rule(
        _pair([*GOOD, build.contract("gradient", "w", 50)], [*GOOD, build.contract("gradient", "w", 51)]),
        passed(),
        _set(contract, "SOFT", frozenset()),
    ),
    "6: renamed values are paired by their place in the optimizer": Rule(
        _pair(
            [
                op("f", [10], [20]),
                op("f", [11], [21]),
                *(build.contract("parameter", n, v, n[-1]) for n, v in (("a.0", 20), ("a.1", 21))),
            ],
            [
                op("f", [10], [20]),
                op("f", [11], [21]),
                *(build.contract("parameter", n, v, n[-1]) for n, v in (("b.0", 21), ("b.1", 20))),
            ],
        ),
        diverged("inputs", 1),
        _set(contract, "_paired_by_key", lambda *args: []),
    ),
    "6: renamed values are paired by value": Rule(
        _pair(
            [op("f", [10], [20]), build.contract("buffer", "a", 20)],
            [op("f", [10], [20]), build.contract("buffer", "b", 20)],
        ),
        passed(),
        _set(contract, "_drop_equal_values", lambda *args: None),
    ),
    "6: a value that only one run promises is a difference": Rule(
        _pair([*GOOD, build.contract("value", "a", 20)], GOOD),
        diverged("missing", 0, "reference"),
        lambda patch: patch.setattr(
            comparison, "differences", lambda *a: [d for d in contract.differences(*a) if d.reference and d.candidate]
        ),
    ),
    "6: a value that only one run could name is none if the other made it by the same call": Rule(
        _pair([*GOOD, build.contract("buffer", "a", 20)], GOOD),
        passed(notes=1),
        _set(comparison, "is_unnamed", lambda *args: False),
    ),
    "6: a generator may end elsewhere if the same draws were made through other objects": Rule(
        _pair(
            [op("rand", [], [20], draw=(1, 2)), loss(20), build.contract("rng", "cpu", 2)],
            [op("rand", [], [20], draw=(1, 2)), loss(20), build.contract("rng", "cpu", 3)],
        ),
        passed(notes=1),
        _set(comparison, "same_draws", lambda *args: False),
    ),
    "6: a generator may be ahead for a while if no other value differs before it is back": Rule(
        _pair(
            [
                [op("f", [10], [20]), loss(20), build.contract("rng", "cpu", 1)],
                [op("rand", [], [21], draw=(1, 2)), loss(21), build.contract("rng", "cpu", 2)],
            ],
            [
                [op("f", [10], [20]), op("rand", [], [21], draw=(1, 2)), loss(20), build.contract("rng", "cpu", 2)],
                [loss(21), build.contract("rng", "cpu", 2)],
            ],
        ),
        passed(passing=[1], notes=1),
        _set(comparison, "first_failure", _at_once),
    ),
    "6: what a run returned that ended early tells less than the step it lacks": Rule(
        _pair(
            [
                [op("f", [10], [20]), loss(20)],
                [op("f", [11], [21]), loss(21), build.contract("final", "w", 21)],
            ],
            [[op("f", [10], [20]), loss(20), build.contract("final", "w", 20)]],
        ),
        diverged("missing", 2, "reference"),
        _set(comparison, "first_failure", _at_once),
    ),
    "7: departures that do not reach the contract are listed, a kernel's with a warning": Rule(
        _pair(
            [op("f", [10], [20]), op("k", [10], [40]), loss(40)], [op("f", [10], [21]), op("k", [10], [40]), loss(40)]
        ),
        passed(passing=[0], notes=1),
        _set(Judge, "passing", lambda self, step: []),
    ),
    "8: only departures from which the contract was made are to blame": Rule(
        _pair(
            [op("k", [10], [40]), *GOOD],
            [op("m", [10], [41]), op("f", [10], [20], extra="eps=1"), op("g", [20], [31], extra="eps=1"), loss(31)],
        ),
        diverged("arguments", 2),
        _set(Origins, "behind", _all_departures),
    ),
    "8: the walk ends behind an operator that gave something else": Rule(
        _pair(
            [op("f", [10], [20]), op("f", [10], [20]), op("g", [20, 20], [30]), loss(30)],
            [op("f", [10], [20]), op("f", [10], [20]), op("g", [20, 20], [31]), loss(31)],
        ),
        diverged("kernel", 2),
        _set(Origins, "contra", lambda self, event: False),
    ),
    "9: an operator whose other result heals is found from the reference's side": Rule(
        _pair(
            [op("f", [10], [20]), op("f", [11], [12]), op("add", [10, 20], [30]), loss(30)],
            [op("f", [11], [12]), op("f", [10], [12]), op("add", [10, 12], [10]), loss(10)],
        ),
        diverged("kernel", 1),
        _set(judge, "joined", lambda pairs, ours, theirs: ours),
    ),
    "9: so are other arguments whose result exists": Rule(
        _pair(
            [op("f", [10], [20], extra="a=1"), op("f", [10], [21], extra="a=2"), op("add", [10, 20], [30]), loss(30)],
            [op("f", [10], [21], extra="a=3"), op("f", [10], [21], extra="a=2"), op("add", [10, 21], [10]), loss(10)],
        ),
        diverged("arguments", 0),
        _set(judge, "joined", lambda pairs, ours, theirs: ours),
    ),
    "11: arguments are code where the reference did more at that place before": Rule(
        _pair(
            [op("add_", [12], [13]), op("norm", [10], [20], extra="training=True"), loss(20), loss(13)],
            [op("norm", [10], [21], extra="training=False"), loss(21), loss(12)],
        ),
        diverged("code", 0),
        _set(judge, "is_gone", lambda *args: False),
    ),
    "11: what the candidate makes on the same inputs with other arguments is not left out": Rule(
        _pair(_groups((0, 2), (1, 2), (2, 1), (3, 1)), _groups((0, 2), (3, 2), (1, 1), (2, 1), new=40)),
        diverged("arguments", 1),
        _set(judge, "inputs_key", lambda event: None),
    ),
    "10: what the reference did in an earlier step is missing": Rule(
        _pair(
            [[op("in", [], [10]), op("up", [10], [20])], [op("f", [20], [30]), loss(30)]],
            [[op("in", [], [10])], [op("h", [10], [31]), loss(31)]],
        ),
        diverged("missing", 1, "reference"),
        _set(judge, "begins_earlier", lambda ours, theirs: False),
    ),
    "10: also where the candidate goes on with what the reference had before": Rule(
        _pair(
            [[op("up", [10], [20])], [op("f", [20], [30]), loss(30)]],
            [[], [op("f", [10], [31]), loss(31)]],
        ),
        diverged("missing", 0, "reference"),
        _set(judge, "is_old", lambda *args: False),
    ),
    "10: a copy into memory that was left out counts": Rule(
        _pair(
            [op("f", [10], [20]), op("k", [10], [11]), copy(20, 1), build.contract("buffer", "b", 20, writers=(2,))],
            [op("f", [10], [20]), op("k", [10], [11]), build.contract("buffer", "b", 11, writers=(1,))],
        ),
        diverged("missing", 2, "reference"),
        _both(absent, operands, "is_left_out_copy", lambda pairs, event: False),
    ),
    "10: what went into a copy that was left out is before it": Rule(
        _pair(
            [
                op("k", [10], [11]),
                op("f", [11, 12], [20]),
                copy(20, 0),
                build.contract("buffer", "b", 20, writers=(2,)),
            ],
            [op("k", [10], [11]), build.contract("buffer", "b", 11, writers=(0,))],
        ),
        diverged("missing", 1, "reference"),
        lambda patch: patch.setattr(judge, "min", lambda events, key: events[0], raising=False),
    ),
    "11: a copy into memory that only the candidate makes is other code": Rule(
        _pair(
            [op("f", [10], [20]), op("k", [10], [11]), op("g", [read(11, writers=(1,))], [30]), loss(30)],
            [op("f", [10], [20]), op("k", [10], [11]), copy(20, 1), op("g", [read(20, writers=(2,))], [31]), loss(31)],
        ),
        diverged("code", 2),
        _set(operands, "is_inserted_copy", lambda pairs, event: False),
    ),
    "11: foreign writes may lie in the reference": Rule(
        _pair([op("f", [10], [20]), op("g", [read(21, OVER, writers=(0,))], [31]), loss(31)], GOOD),
        diverged("overwritten", 1, "reference"),
        _set(judge, "in_reference", lambda pairs, theirs: None),
    ),
    "11: a hidden write in the reference, also where the candidate makes the call with other arguments": Rule(
        _pair(
            [op("c", [10, 11], [20, Write(12, build.SPEC, ~1, HIDDEN)], extra="k=1"), loss(20)],
            [op("c", [10, 11], [21], extra="k=2"), loss(21)],
        ),
        diverged("hidden-mutation", 0, "reference"),
        _set(foreign, "same_inputs_other_arguments", lambda pairs, event: None),
    ),
    "11: a foreign write in the reference need not have made what its first reader made otherwise": Rule(
        _pair(
            [
                op("f", [10], [20]),
                op("k", [read(21, OVER, writers=(0,))], [40]),
                op("g", [read(21, OVER, writers=(0,))], [31]),
                loss(31),
            ],
            [op("f", [10], [20]), op("k", [20], [40]), op("g", [20], [30]), loss(30)],
        ),
        diverged("overwritten", 1, "reference"),
        _set(foreign, "_reads", lambda origins, event, leaf: False),
    ),
    "11: a draw from another state leads to the draw that was inserted": Rule(
        _pair(
            [op("rand", [], [20], draw=(1, 2), spec="float32[9]"), op("randn", [], [21], draw=(2, 3)), loss(21)],
            [
                op("rand", [], [20], draw=(1, 2), spec="float32[9]"),
                op("rand", [], [22], draw=(2, 4), spec="float32[7]"),
                op("randn", [], [23], draw=(4, 5)),
                loss(23),
            ],
        ),
        diverged("random", 1),
        _set(Judge, "draw_change", lambda self, step: None),
    ),
    "11: a draw that was undone is not the one that was inserted": Rule(
        _pair(
            [op("rand", [], [20], draw=(1, 2)), loss(20), build.contract("rng", "cpu", 2)],
            [
                op("randn", [], [25], draw=(1, 9)),
                op("rand", [], [20], draw=(1, 2)),
                op("bernoulli", [], [26], draw=(2, 3)),
                loss(20),
                build.contract("rng", "cpu", 3),
            ],
        ),
        diverged("random", 2),
        _set(draws, "live_draws", lambda made, states: list(made)),
    ),
    "11: a draw that only one run undid is neither inserted nor left out": Rule(
        _pair(
            [
                op("rand", [], [20], draw=(1, 2)),
                op("randn", [], [21], draw=(1, 3), spec="float32[9]"),
                loss(21),
                build.contract("rng", "cpu", 3),
            ],
            [
                op("rand", [], [20], draw=(1, 2)),
                op("randn", [], [22], draw=(2, 4), spec="float32[9]"),
                loss(22),
                build.contract("rng", "cpu", 4),
            ],
        ),
        diverged("random", 1),
        _set(draws, "_not_undone", lambda live, others, made: live),
    ),
    "11: a draw that was inserted and made use of is other code": Rule(
        _pair(
            [op("f", [10], [20]), op("g", [20], [30]), loss(30), build.contract("rng", "cpu", 1)],
            [
                op("f", [10], [20]),
                op("bernoulli", [], [25], draw=(1, 2)),
                op("mul", [20, 25], [26]),
                op("g", [26], [31]),
                loss(31),
                build.contract("rng", "cpu", 2),
            ],
        ),
        diverged("code", 1),
        _set(judge, "_is_part_of", lambda change, ours, theirs: False),
    ),
    "11: a draw that was left out with what used it is missing": Rule(
        _pair(
            [
                op("f", [10], [20]),
                op("bernoulli", [], [25], draw=(1, 2)),
                op("mul", [20, 25], [26]),
                op("g", [26], [31]),
                loss(31),
                build.contract("rng", "cpu", 2),
            ],
            [op("f", [10], [20]), op("g", [20], [30]), loss(30), build.contract("rng", "cpu", 1)],
        ),
        diverged("missing", 1, "reference"),
        _set(judge, "_is_part_of", lambda change, ours, theirs: False),
    ),
    "11: a number that Python set is not to blame where operators are missing": Rule(
        _pair(
            [op("f", [10], [20]), op("g", [20], [30]), loss(30), build.contract("optimizer", "n", 50)],
            [op("f", [10], [20]), loss(20), build.contract("optimizer", "n", 51)],
        ),
        diverged("missing", 1, "reference"),
        _set(judge, "_is_set_by_python", lambda origin: False),
    ),
    "11: writing in place over what the reference still reads is other code": Rule(
        _pair(
            [op("f", [10], [20]), op("add", [20, 11], [21]), op("g", [21, 20], [30]), loss(30)],
            [
                op("f", [10], [20]),
                op("add_", [20, 11], [INTO_FIRST]),
                op("g", [21, 21], [31]),
                loss(31),
            ],
        ),
        diverged("code", 1),
        _set(operands, "_writes_over", lambda event, value: False),
    ),
    "11: so is not writing in place over what the reference reads anew": Rule(
        _pair(
            [
                op("f", [10], [20]),
                op("add_", [20, 11], [INTO_FIRST]),
                op("g", [21, 21], [31]),
                loss(31),
            ],
            [op("f", [10], [20]), op("add", [20, 11], [21]), op("g", [21, 20], [30]), loss(30)],
        ),
        diverged("code", 1),
        _set(operands, "_writes_over", lambda event, value: False),
    ),
    "11: what is read before it is written in place, not after it, is another operand": Rule(
        _pair(
            [
                op("f", [10], [20]),
                op("up_", [20, 11], [INTO_FIRST]),
                op("g", [21], [40]),
                op("h", [21, 40], [30]),
                loss(30),
            ],
            [
                op("f", [10], [20]),
                op("g", [20], [41]),
                op("h", [20, 41], [31]),
                op("up_", [31, 11], [Write(32, build.SPEC, ~0, 0)]),
                loss(32),
            ],
        ),
        diverged("inputs", 1),
        _set(operands, "_other_order", lambda *args: ""),
    ),
    "11: a call on other values that comes later is not missing": Rule(
        _pair(
            [op("f", [10], [20]), op("a", [20], [21]), op("b", [21], [22]), op("g", [22], [30]), loss(30)],
            [op("f", [10], [20]), op("b", [20], [23]), op("a", [23], [24]), op("g", [24], [31]), loss(31)],
        ),
        diverged("inputs", 1),
        _set(operands, "_other_order", lambda *args: ""),
    ),
    "11: a call that is made once more does not come later": Rule(
        _pair(
            [op("up", [10], [20]), op("g", [20], [30]), loss(30)],
            [op("g", [10], [31]), op("up", [31], [32]), op("up", [32], [33]), loss(33)],
        ),
        diverged("code", 0),
        _set(operands, "_is_as_often", lambda pairs, theirs: True),
    ),
    "11: writing in place into a part of what is read is other code": Rule(
        _pair(
            [
                op("f", [10], [20]),
                op("clone", [20], [20], kind="copy"),
                op("up_", [read(20, writers=(1,))], [Write(22, build.SPEC, ~0, 0)]),
                op("g", [read(20, writers=(0,))], [30]),
                loss(30),
            ],
            [
                op("f", [10], [20]),
                op("up_", [20], [Write(22, build.SPEC, ~0, 0)]),
                op("g", [read(23, writers=(0, 1))], [31]),
                loss(31),
            ],
        ),
        diverged("code", 1),
        _set(operands, "_written_aside", lambda *args: None),
    ),
    "11: so is writing it somewhere else": Rule(
        _pair(
            [
                op("f", [10], [20]),
                op("up_", [20], [Write(22, build.SPEC, ~0, 0)]),
                op("g", [read(23, writers=(0, 1))], [31]),
                loss(31),
            ],
            [
                op("f", [10], [20]),
                op("clone", [20], [20], kind="copy"),
                op("up_", [read(20, writers=(1,))], [Write(22, build.SPEC, ~0, 0)]),
                op("g", [read(20, writers=(0,))], [30]),
                loss(30),
            ],
        ),
        diverged("code", 2),
        _set(operands, "_written_aside", lambda *args: None),
    ),
    "11: draws that both runs make, in another order, are not inserted": Rule(
        _pair(
            [
                op("rand", [], [20], draw=(1, 2)),
                op("randn", [], [21], draw=(2, 3)),
                op("add", [20, 21], [30]),
                loss(30),
            ],
            [
                op("randn", [], [22], draw=(1, 4)),
                op("rand", [], [23], draw=(4, 3)),
                op("add", [23, 22], [31]),
                loss(31),
            ],
        ),
        diverged("random", 0),
        _set(draws, "_moved", lambda theirs, mine: None),
    ),
    "11: a draw of another shape is other code": Rule(
        _pair(
            [op("rand", [], [20], draw=(1, 2)), loss(30), build.contract("rng", "cpu", 2)],
            [op("rand", [], [21], draw=(1, 3), spec="float32[9]"), loss(30), build.contract("rng", "cpu", 3)],
        ),
        diverged("code", 0),
        _set(Judge, "_of_draw", lambda self, change: calls.arguments(change.event, change.other)),
    ),
    "11: memory that only the contract shows to be overwritten is told by who reads it next": Rule(
        _pair(
            [
                [op("f", [10], [20]), build.contract("parameter", "w", 20)],
                [op("g", [read(20, writers=(0,))], [30]), loss(30)],
            ],
            [
                [op("f", [10], [20]), build.contract("parameter", "w", 21, writers=(0,), flags=OVER)],
                [op("g", [read(21, OVER, writers=(0,))], [31]), loss(31)],
            ],
        ),
        diverged("overwritten", 2),
        _set(foreign, "_next_reader", lambda origins, value, leaf: None),
    ),
    "11: a foreign write that only the reference's contract shows": Rule(
        _pair(
            [op("f", [10], [20]), build.contract("buffer", "b", 21, writers=(0,), flags=OVER)],
            [op("f", [10], [20]), build.contract("buffer", "b", 20)],
        ),
        diverged("overwritten", 1, "reference"),
        _set(judge, "in_reference", lambda pairs, theirs: None),
    ),
    "11: memory that nobody wrote in the reference and the candidate fills": Rule(
        _pair(
            [op("empty", [], [NO_VALUE], kind="alloc"), op("g", [read(21, writers=(0,))], [31]), loss(31)],
            [op("zeros", [], [20]), op("g", [20], [30]), loss(30)],
        ),
        diverged("uninitialised", 1, "reference"),
        _set(judge, "behind_departure", lambda pairs, event, theirs: False),
    ),
    "11: an operator that only the candidate has on a value that was there before is other code": Rule(
        _pair(
            [[op("f", [10], [20]), loss(20)], [op("f", [11], [21]), loss(21)]],
            [[op("f", [10], [20]), loss(20)], [op("f", [11], [21]), op("h", [21, 10], [31]), loss(31)]],
        ),
        diverged("code", 3),
        _set(judge, "is_old", lambda pairs, event, leaf: False),
    ),
    "11: the same call on the same inputs with other arguments": Rule(
        _pair(
            [op("f", [10], [20], extra="eps=1"), op("g", [20], [30]), loss(30)],
            [op("f", [10], [21], extra="eps=2"), op("g", [21], [31]), loss(31)],
        ),
        diverged("arguments", 0),
        _set(judge, "of_arguments", lambda pairs, event: None),
    ),
    "11: the same call on another operand": Rule(
        _pair(
            [op("f", [10], [20]), op("k", [10], [21]), op("g", [20], [30]), loss(30)],
            [op("f", [10], [20]), op("k", [10], [21]), op("g", [21], [31]), loss(31)],
        ),
        diverged("inputs", 2),
        _set(judge, "of_operand", lambda pairs, event, theirs: None),
    ),
    "11: an operand that nobody made is state if it is a parameter's memory": Rule(
        _pair(
            [op("f", [read(10, STATE)], [20]), loss(20)],
            [op("f", [read(11, STATE)], [21]), loss(21)],
        ),
        diverged("state", 0),
        _set(operands, "STATE", 0),
    ),
    "11: other operands are followed back to where they were exchanged": Rule(
        _pair(
            [op("f", [10], [20]), op("k", [10], [21]), op("f", [21], [22]), op("g", [20], [30]), loss(30)],
            [op("f", [10], [20]), op("k", [10], [21]), op("f", [21], [22]), op("g", [22], [31]), loss(31)],
        ),
        diverged("inputs", 3),
        _set(operands, "_same_call", lambda pairs, event, theirs: None),
    ),
    "11: an operator that the candidate leaves out, so that its input goes on in its stead": Rule(
        _pair(
            [op("k", [11], [10]), op("h", [10], [20]), op("f", [10], [20]), op("g", [20], [30]), loss(30)],
            [op("k", [11], [10]), op("h", [10], [20]), op("g", [10], [31]), loss(31)],
        ),
        diverged("missing", 2, "reference"),
        _set(operands, "_is_left_out", lambda pairs, theirs: False),
    ),
    "11: the first time that the same operator had the same cause is told": Rule(
        _pair(
            [
                [op("f", [10], [20], extra="eps=1", module="a"), loss(40)],
                [op("f", [11], [21], extra="eps=1", module="a"), loss(21)],
            ],
            [
                [op("f", [10], [22], extra="eps=2", module="a"), loss(40)],
                [op("f", [11], [23], extra="eps=2", module="a"), loss(23)],
            ],
        ),
        diverged("arguments", 0, passing=[0]),
        _set(Judge, "earlier_alike", lambda self, cause: cause),
    ),
    "12: a number that Python was given differs before": Rule(
        _pair(
            [op("f", [10], [weak(12)]), op("item", [12], flags=HOST), op("mul", [10], [30], extra="other=1"), loss(30)],
            [op("h", [10], [weak(13)]), op("item", [13], flags=HOST), op("mul", [10], [31], extra="other=2"), loss(31)],
        ),
        diverged("code", 0),
        _set(judge, "through_host", lambda pairs, cause: None),
    ),
    "12: a number that is looked at in another place counts too": Rule(
        _pair(
            [
                op("k", [10], [40]),
                op("f", [10], [weak(12)]),
                op("item", [12], flags=HOST),
                op("mul", [10], [30], extra="other=1"),
                loss(30),
            ],
            [
                op("f", [10], [weak(13)]),
                op("item", [13], flags=HOST),
                op("k", [10], [40]),
                op("mul", [10], [31], extra="other=2"),
                loss(31),
            ],
        ),
        diverged("kernel", 0),
        lambda patch: patch.setattr("opguard_ci.compare.host.place", lambda event: event.index),
    ),
    "10: what the candidate does on something else is not missing": Rule(
        _pair(
            [op("in", [], [10]), op("k", [10], [11]), op("f", [10], [20]), op("up", [20], [30]), loss(30)],
            [op("in", [], [10]), op("k", [10], [11]), op("f", [11], [21]), loss(10)],
        ),
        diverged("inputs", 2),
        _set(Pairs, "like_of_reference", lambda self, event: None),
    ),
    "10: what it does on something else is explained by what made that": Rule(
        _pair(
            [
                op("g", [10], [20]),
                op("t", [20, 11], [30]),
                op("up", [12, 30], [31]),
                build.contract("parameter", "w", 31),
            ],
            [
                op("g", [10], [20]),
                op("z", [20], [25]),
                op("t", [25, 11], [weak(26, spec=build.SPEC)]),
                op("up", [12, 26], [Write(12, build.SPEC, ~0, 0)]),
                build.contract("parameter", "w", 12),
            ],
        ),
        diverged("code", 1),
        _set(Pairs, "like_of_reference", lambda self, event: None),
    ),
    "11: two calls that both runs make are not one with other arguments": Rule(
        _pair(
            [*MADE, *_in_turn((10, 1, 20), (11, 2, 21)), op("f", [20, 21], [30]), loss(30)],
            [*MADE, *_in_turn((11, 1, 22), (10, 2, 23)), op("f", [22, 23], [31]), loss(31)],
        ),
        diverged("inputs", 2),
        _set(calls, "_are_two_calls", lambda *args: False),
    ),
    "11: a call that is left out does not give its arguments to the next": Rule(
        _pair(
            [*_in_turn((10, 2, 20), (20, 2, 21), (21, 1, 30)), loss(30)],
            [*_in_turn((10, 2, 20), (20, 1, 31)), loss(31)],
        ),
        diverged("missing", 1, "reference"),
        _set(calls, "_are_two_calls", lambda *args: False),
    ),
    "11: nor does one that is inserted": Rule(
        _pair(
            [*_in_turn((10, 2, 20), (20, 1, 31)), loss(31)],
            [*_in_turn((10, 2, 20), (20, 2, 21), (21, 1, 30)), loss(30)],
        ),
        diverged("code", 1),
        _set(calls, "_are_two_calls", lambda *args: False),
    ),
    "11: the same value in another shape is another operand": Rule(
        _pair(
            [op("f", [10, read(11, spec="bool[8,1]")], [20]), loss(20)],
            [op("f", [10, read(11, spec="bool[1,8]")], [21]), loss(21)],
        ),
        diverged("inputs", 0),
        _set(operands, "other_operands", lambda event, other: []),
    ),
    "11: memory is filled from another source": Rule(
        _pair(
            [*MADE, op("t", [5], [12]), copy(10), copy(11), op("f", [read(50, writers=(3, 4))], [30]), loss(30)],
            [*MADE, op("t", [5], [12]), copy(10), copy(12), op("f", [read(51, writers=(3, 4))], [31]), loss(31)],
        ),
        diverged("inputs", 4),
        _set(operands, "filled_otherwise", lambda *args: None),
    ),
    "11: memory is filled in another place": Rule(
        _pair(
            [*MADE, _view(99, 1), copy(10), copy(11), op("f", [read(50, writers=(3, 4))], [30]), loss(30)],
            [*MADE, _view(99, 2), copy(10), copy(11), op("f", [read(51, writers=(3, 4))], [31]), loss(31)],
        ),
        diverged("inputs", 3),
        _set(operands, "placed_otherwise", lambda *args: None),
    ),
    "11: what is written into a part and left out is missing": Rule(
        _pair(
            [
                *MADE,
                FILLED,
                op("f", [read(50, writers=(0, 2))], [30]),
                loss(30),
            ],
            [*MADE, op("g", [11], [50]), op("f", [read(10, writers=(0,))], [31]), loss(31)],
        ),
        diverged("missing", 2, "reference"),
        _set(operands, "_written_aside", lambda *args: None),
    ),
    "11: what is written into a part and inserted is code": Rule(
        _pair(
            [*MADE, op("g", [11], [50]), op("f", [read(10, writers=(0,))], [31]), loss(31)],
            [
                *MADE,
                FILLED,
                op("f", [read(50, writers=(0, 2))], [30]),
                loss(30),
            ],
        ),
        diverged("code", 2),
        _set(operands, "_written_aside", lambda *args: None),
    ),
    "11: the call before in a loop is no other order": Rule(
        _pair(
            [*MADE, *GS, op("f", [20], [30]), op("h", [21, 30], [40]), loss(40)],
            [
                *MADE,
                GS[1],
                op("f", [21], [31]),
                GS[0],
                op("h", [20, 31], [41]),
                loss(41),
            ],
        ),
        diverged("inputs", 3),
        _set(operands, "place", lambda event: event.index),
    ),
    "11: what made an operand of what the reference reads is inserted": Rule(
        _pair(
            [_view(20, 22), _view(20, 23), op("f", [22], [30]), op("g", [23], [31]), op("h", [30, 31], [40]), loss(40)],
            [
                op("flip", [20], [21]),
                _view(21, 23, writers=(0,)),
                _view(21, 22, writers=(0,)),
                op("f", [read(23, writers=(0,))], [32]),
                op("g", [read(22, writers=(0,))], [33]),
                op("h", [32, 33], [41]),
                loss(41),
            ],
        ),
        diverged("code", 0),
        _set(operands, "is_inserted", lambda *args: False),
    ),
    "11: a draw that is left out gives its generator state to the next": Rule(
        _pair(
            [_draw(20, 1, "[4]"), _draw(21, 2, "[9]"), op("f", [20, 21], [30]), loss(30)],
            [_draw(22, 1, "[9]"), op("g", [22], [31]), loss(31)],
        ),
        diverged("missing", 0, "reference"),
        _set(judge, "is_gone", lambda *args: False),
    ),
    "11: a draw of another shape in its place is other code": Rule(
        _pair(
            [_draw(20, 1, "[4]"), op("f", [20], [30]), loss(30)],
            [_draw(22, 1, "[9]"), op("f", [22], [31]), loss(31)],
        ),
        diverged("code", 0),
        _set(Pairs, "like", lambda self, event: event),
    ),
    "10: what the reference did first and the candidate does not is missing": Rule(
        _pair(
            [
                op("f", [10], [20]),
                op("m", [20], [30]),
                loss(30),
                op("s", [5], [6], phase="backward"),
                op("d", [6, 10], [40], phase="backward"),
                build.contract("parameter", "w", 40),
            ],
            [
                op("f", [10], [20]),
                loss(20),
                op("d", [5, 10], [41], phase="backward"),
                build.contract("parameter", "w", 41),
            ],
        ),
        diverged("missing", 1, "reference"),
        _set(judge, "is_gone", lambda *args: False),
    ),
    "12: nor is what a number left undone": Rule(
        _pair(
            [
                op("lt", [10], [weak(12)]),
                op("item", [12], flags=HOST),
                op("up", [10], [20]),
                op("f", [20], [30]),
                loss(30),
            ],
            [op("gt", [10], [weak(13)]), op("item", [13], flags=HOST), op("f", [10], [31]), loss(31)],
        ),
        diverged("code", 0),
        _set(judge, "_MAY_COME_FROM_PYTHON", ()),
    ),
    "12: a number that only the candidate looks at is not it": Rule(
        _pair(
            [op("mul", [10], [30], extra="other=1"), loss(30)],
            [op("h", [10], [weak(13)]), op("item", [13], flags=HOST), op("mul", [10], [31], extra="other=2"), loss(31)],
        ),
        diverged("arguments", 2),
        lambda patch: patch.setattr("opguard_ci.compare.host._is_handed_over", lambda pairs, e: bool(e.flags & HOST)),
    ),
    "12: a value without a producer may have gone through numpy": Rule(
        _pair(
            [op("f", [10], [20]), op("g", [21], [30]), loss(30)],
            [op("f", [10], [22]), op("g", [23], [31]), loss(31)],
        ),
        diverged("kernel", 0),
        lambda patch: patch.setattr("opguard_ci.compare.host._through_memory", lambda pairs, cause: None),
    ),
    "12: where nothing explains a contract value, it is told with its last writers": Rule(
        _pair([op("f", [10], [20]), loss(10)], [op("f", [10], [20]), loss(20)]),
        diverged("state", 0),
        _set(comparison, "only_contract", lambda step, found, judge: None),
    ),
    "13: a block of other code begins with the first operator that feeds the new value": Rule(
        _pair(
            GOOD,
            [op("m", [12], [12]), op("h", [10], [10]), op("k", [10], [20]), op("l", [20], [31]), loss(31)],
        ),
        diverged("code", 1),
        _set(judge, "_feeding", lambda event, block: [event]),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_decides(name: str) -> None:
    """Each rule gives its answer."""
    rule = RULES[name]
    assert said(rule.runs) == rule.said


@pytest.mark.parametrize("name", RULES)
def test_without_the_rule_the_answer_is_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule switched off, the same runs are judged otherwise: every rule has a test that needs it."""
    rule = RULES[name]
    rule.off(monkeypatch)
    try:
        answer = said(rule.runs)
    except (AttributeError, TypeError, KeyError):  # the mutant does not even come to an answer
        return
    assert answer != rule.said
