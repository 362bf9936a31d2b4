"""Hand-written runs for tests: operators, contract values and steps in a few words.

A value is any number from 10 on; ``w`` marks a weak one. Writers are found by value: the last operator before that left
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opguard_ci.compare import compare_traces
from opguard_ci.compare.judge import Judge
from opguard_ci.compare.traces import side_of
from opguard_ci.trace.model import NO_VALUE, OUTSIDE, UNREAD, WEAK, Draw, Event, Read, Strings, Write
from tests.strategies import table_of

from .running import MemoryTrace

SPEC = "float32[8,8]"


def read(value: int, flags: int = 0, *, spec: str = SPEC, writers: tuple[int, ...] | None = None) -> Read:
    """A read; ``writers`` are filled in by ``trace`` unless they are given."""
    return Read(value, spec, (-1,) if writers is None else writers, flags)


def op(
    name: str,
    reads: Sequence[int | Read] = (),
    writes: Sequence[int | Write] = (),
    *,
    extra: str = "",
    kind: str = "op",
    phase: str = "forward",
    module: str | None = None,
    draw: tuple[int, int] | None = None,
    flags: int = 0,
    spec: str = SPEC,
) -> Event:
    """One operator: what it reads and writes by value, and its other arguments as text."""
    found = tuple(item if isinstance(item, Read) else read(item, spec=spec) for item in reads)
    made = tuple(item if isinstance(item, Write) else Write(item, spec, slot, 0) for slot, item in enumerate(writes))
    args = ", ".join([*(f"t{n}=%{n}" for n in range(len(found))), *([extra] if extra else [])])
    drawn = None if draw is None else Draw(0, *draw)
    return Event(0, 0, 0, phase, kind, f"aten.{name}.default", module, None, args, None, flags, found, made, drawn)


def weak(value: int, slot: int = 0, spec: str = "float32[]") -> Write:
    """An output that occurs everywhere."""
    return Write(value, spec, slot, WEAK)


def copy(source: int | Read, target: int | None = None, module: str | None = None) -> Event:
    """``copy_`` of a value into memory that had ``target`` (or nothing) in it."""
    found = source if isinstance(source, Read) else read(source)
    old = Read(NO_VALUE, SPEC, () if target is None else (target,), UNREAD)
    write = Write(found.value, found.spec, -1, 0)
    return Event(
        0, 0, 0, "forward", "copy", "aten.copy_.default", module, None, "self=%0, src=%1", None, 0, (old, found),
        (write,), None,
    )  # fmt: skip


def contract(section: str, name: str, value: int, key: str | None = None, **options: Any) -> Event:
    """One value of the contract."""
    return Event(0, 0, 0, "forward", "contract", section, None, None, name, key, 0, (read(value, **options),), (), None)


def loss(value: int) -> Event:
    """The usual end of a step."""
    return contract("loss", "loss", value)


def trace(
    *steps: Sequence[Event], first: int = 0, level: str = "full", key: str = "here", **manifest: Any
) -> MemoryTrace:
    """A run of some steps, numbered from ``first``; writers are the last operators that left the value read."""
    strings, tables, number = Strings(), [], 0
    made: dict[int, int] = {}
    for step, events in enumerate(steps, first):
        finished = []
        for event in events:
            reads = tuple(_linked(item, made) for item in event.reads)
            finished.append(replace(event, index=number, step=step, reads=reads))
            made.update((write.value, number) for write in event.writes if event.kind != "view")
            number += 1
        tables.append(table_of(finished, step=step, first=number - len(finished), strings=strings))
    found = MemoryTrace(tables, level, key)
    found.manifest.update(manifest)
    return found


def _linked(item: Read, made: dict[int, int]) -> Read:
    if item.writers != (-1,):
        return item
    writer = made.get(item.value)
    return replace(
        item, writers=() if writer is None else (writer,), flags=item.flags | (OUTSIDE if writer is None else 0)
    )


def first(reference: MemoryTrace, candidate: MemoryTrace) -> tuple[str, int, str] | None:
    """(cause, event number, side) of the divergence of two runs."""
    found = compare_traces(reference, candidate).first_divergence
    return None if found is None else (found["cause"], found["event"], found["side"])


def judge(reference: MemoryTrace, candidate: MemoryTrace) -> Judge:
    """The judge of two runs."""
    return Judge(side_of(reference), side_of(candidate))
