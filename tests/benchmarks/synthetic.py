"""A made-up training step of 2,000 operators, repeated as often as wanted and written as a trace."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from opguard_ci.trace.digest import step_digests
from opguard_ci.trace.model import KINDS, NULL, OUTSIDE, PHASES, RANDOM, SCHEMA, STATE, WEAK, StepTable, Strings
from opguard_ci.trace.writer import TraceWriter

OPERATORS: Final = 2000
PARAMETERS: Final = 40
_EDITED: Final = 0.02
_NAMES: Final = 30
_MODULES: Final = 60
_PHASES: Final = (("forward", 0.35), ("backward", 0.85), ("optimizer", 1.0))
# Numbers of values that are no operator's own.
_WEAK: Final = 10_000_000
_STATE: Final = 20_000_000
_CHANGED: Final = 30_000_000


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of the step. ``reads`` are numbers of operators before it; below 0: of parameters, ``~number``."""

    number: int
    """What its values are made from; it stays when the operator is moved or renamed."""
    op: str
    args: str
    phase: str
    place: int
    """Of its module and stack."""
    reads: tuple[int, ...]
    weak: bool = False
    copy: bool = False
    draws: bool = False
    writes: int = NULL
    """The parameter that it changes in place."""


@dataclass(frozen=True, slots=True)
class Change:
    """An operator that gives something else in the last step."""

    number: int
    op: str


@dataclass(frozen=True, slots=True)
class Step:
    """The operators of a step in order."""

    operators: tuple[Operator, ...]

    @classmethod
    def random(cls, seed: int) -> Step:
        """A step in which every operator works on what some of the forty before it made."""
        rng = random.Random(seed)
        operators: list[Operator] = []
        strong: list[int] = []
        for number in range(OPERATORS):
            phase = next(name for name, end in _PHASES if number < end * OPERATORS)
            near = strong[-40:]
            reads = tuple(rng.sample(near, min(len(near), rng.randint(1, 2))))
            parameter = NULL
            if phase == "optimizer":
                parameter = number % PARAMETERS
                reads = (~parameter, *reads)
            elif rng.random() < 0.2 or not reads:
                reads = (~rng.randrange(PARAMETERS), *reads)
            kind = rng.random()
            weak = parameter == NULL and kind < 0.2
            copy = parameter == NULL and 0.2 <= kind < 0.23
            name = "clone" if copy else f"op{rng.randrange(_NAMES)}"
            form = f"alpha={rng.choice(('1', '2', '0.5'))}"
            args = ", ".join([*(f"t{n}=%{n}" for n in range(len(reads))), form])
            place = number * _MODULES // OPERATORS
            draws = not weak and not copy and parameter == NULL and rng.random() < 0.005
            operators.append(
                Operator(
                    number, f"aten.{name}.default", args, phase, place, reads[:1] if copy else reads, weak, copy,
                    draws, parameter,
                )
            )  # fmt: skip
            if not weak:
                strong.append(number)
        return cls(tuple(operators))


def edited(step: Step, seed: int) -> tuple[Step, Change]:
    """The step with 2 % of its operators moved, renamed or inserted, and an operator to change in the last step."""
    rng = random.Random(seed + 1)
    operators = list(step.operators)
    plain = [o.number for o in operators if not (o.weak or o.copy or o.draws) and o.writes == NULL]
    chosen = rng.sample(plain[10:], round(_EDITED * len(operators)))
    third = len(chosen) // 3
    for extra, number in enumerate(chosen):
        at = next(n for n, operator in enumerate(operators) if operator.number == number)
        operator = operators[at]
        if extra < third:  # moved to right behind what it reads
            del operators[at]
            behind = [n for n, other in enumerate(operators[:at]) if other.number in operator.reads]
            operators.insert(max(behind, default=-1) + 1, operator)
        elif extra < 2 * third:
            operators[at] = replace(operator, op=operator.op.replace(".default", "_renamed.default"))
        else:
            new = Operator(OPERATORS + extra, "aten.inserted.default", "t0=%0", operator.phase, 0, (number,))
            operators.insert(at + 1, new)
    wanted = rng.choice(sorted(set(plain[200:600]) - set(chosen)))
    changed = next(operator for operator in operators if operator.number == wanted)
    return Step(tuple(operators)), Change(changed.number, changed.op)


def write_trace(folder: Path, step: Step, steps: int, change: Change | None = None) -> None:
    """Write a run of so many steps; ``change`` takes effect in the last."""
    writer = TraceWriter(folder)
    strings = Strings()
    first_step, middle, last = (_Layout(step, strings, *kind) for kind in ((False, None), (True, None), (True, change)))
    entries: list[dict[str, Any]] = []
    for number in range(steps):
        table = (first_step if number == 0 else middle if number < steps - 1 else last).table(number)
        writer.write_step(table)
        entries.append({"step": number, "events": len(table), "digests": step_digests(table), "flagged": []})
    count = steps * OPERATORS
    manifest = {
        "schema": SCHEMA, "target": "synthetic", "environment": {"key": "0" * 32, "document": {}}, "level": "full",
        "profile": "strict", "scheme": "xxh3-64/1", "ranks": 1, "steps": entries, "objects": writer.close(),
        "coverage": {"operators": count, "hashed": count, "unhashed": [], "unseen": []}, "complete": True,
    }  # fmt: skip
    writer.write_manifest(manifest)


class _Layout:
    """The columns of a step that are alike in all steps. A value is known by a number and the step that made it; links
    are relative to the step.
    """

    def __init__(self, step: Step, strings: Strings, linked: bool, change: Change | None) -> None:
        self._table = StepTable(0, 0, strings)
        self._reads: list[tuple[int, int]] = []  # (value, steps ago)
        self._writes: list[tuple[int, int]] = []
        self._links: list[tuple[int, int]] = []  # (position in the step, steps ago)
        self._draws: list[int] = []
        self._size = len(step.operators) + PARAMETERS + 2
        places = {operator.number: n for n, operator in enumerate(step.operators)}
        made = {operator.number: operator for operator in step.operators}
        parameters = {~o.writes: (o.number, 1) for o in step.operators if o.writes != NULL}
        changed: set[int] = set()
        for operator in step.operators:
            reads = [parameters.get(read, (read, 0)) for read in operator.reads]
            args = operator.args
            if any(number in changed and not ago for number, ago in reads):
                changed.add(operator.number)
            if change is not None and change.number == operator.number:
                changed.add(operator.number)
                args = args.replace("alpha=", "alpha=1")
            self._event(operator.op, args, operator)
            for read, (number, ago) in zip(operator.reads, reads, strict=True):
                weak = made[number].weak
                links = [(places[number], ago)] if linked or not ago else []
                self._read(_value(number, changed, weak, ago), _spec(weak), STATE if read < 0 else 0, links)
            self._write(_value(operator.number, changed, operator.weak, 0), operator)
            if operator.writes != NULL:
                parameters[~operator.writes] = (operator.number, 0)
        for number, value in sorted(parameters.items(), reverse=True):
            self._contract("parameter", f"p{~number}", _value(value[0], changed, False, 0), [(places[value[0]], 0)])
        loss = max(n for n, o in made.items() if o.phase == "forward" and not o.weak and n < OPERATORS)
        self._contract("loss", "loss", _value(loss, changed, False, 0), [(places[loss], 0)])
        self._contract("rng", "torch", (_STATE + len(self._draws), 0), [])

    def table(self, number: int) -> StepTable:
        """Step ``number``."""
        first = number * self._size
        reads, writes = _mixed(self._reads, number), _mixed(self._writes, number)
        before, after = ([0] * len(self._table) for _ in range(2))
        generator = [NULL] * len(self._table)
        for count, row in enumerate(self._draws):
            generator[row] = 0
            before[row], after[row] = _mixed([(_STATE + count, 0), (_STATE + count + 1, 0)], number)
        writers = [first - ago * self._size + place for place, ago in self._links]
        return replace(
            self._table, step=number, first=first, read_value=reads, write_value=writes, generator=generator,
            state_before=before, state_after=after, writers=writers,
        )  # fmt: skip

    def _event(self, op: str, args: str, operator: Operator | None) -> None:
        table, strings = self._table, self._table.strings
        kind = "contract" if operator is None else "copy" if operator.copy else "op"
        if operator is not None and operator.draws:
            self._draws.append(len(table))
        table.lane.append(0)
        table.phase.append(PHASES.index("optimizer" if operator is None else operator.phase))
        table.kind.append(KINDS.index(kind))
        table.op.append(strings.op(op))
        table.module.append(NULL if operator is None else strings.module(f"blocks.{operator.place}.layer"))
        table.stack.append(NULL if operator is None else strings.stack(_stack(operator.place)))
        table.args.append(strings.args(args))
        table.key.append(NULL)
        table.flags.append(RANDOM if operator is not None and operator.draws else 0)
        table.read_offsets.append(len(self._reads))
        table.write_offsets.append(len(self._writes))

    def _read(self, value: tuple[int, int], spec: str, flags: int, links: list[tuple[int, int]]) -> None:
        table = self._table
        self._reads.append(value)
        self._links += links
        table.read_spec.append(table.strings.spec(spec))
        table.read_flags.append(flags if links else flags | OUTSIDE)
        table.writer_offsets.append(len(self._links))
        table.read_offsets[-1] = len(self._reads)

    def _write(self, value: tuple[int, int], operator: Operator) -> None:
        table = self._table
        self._writes.append(value)
        table.write_spec.append(table.strings.spec(_spec(operator.weak)))
        table.write_slot.append(~0 if operator.writes != NULL else 0)
        table.write_flags.append(WEAK if operator.weak else 0)
        table.write_offsets[-1] = len(self._writes)

    def _contract(self, section: str, name: str, value: tuple[int, int], links: list[tuple[int, int]]) -> None:
        self._event(section, name, None)
        self._read(value, _spec(False), 0, links)


def _value(number: int, changed: set[int], weak: bool, ago: int) -> tuple[int, int]:
    """What an operator made: weak values are the same few in every step."""
    if weak:
        return (_WEAK + number % 7, -1)
    return (number + _CHANGED if number in changed and not ago else number, ago)


def _mixed(values: list[tuple[int, int]], step: int) -> list[int]:
    """Fingerprints: any numbers that differ wherever value or step do."""
    array = np.array(values, np.int64)
    made_in = np.where(array[:, 1] < 0, -1, step - array[:, 1])
    mixed = (array[:, 0] * 1_000_003 + made_in).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    found: list[int] = (mixed * np.uint64(0xD6E8FEB86659FD93) | np.uint64(1)).tolist()
    return found


def _spec(weak: bool) -> str:
    return "float32[]" if weak else "float32[64,64]"


def _stack(place: int) -> str:
    return "\n".join(f"model/part{place}.py\t{100 + n}\tLayer{n}.forward\tx = self.inner(x)" for n in range(6))
