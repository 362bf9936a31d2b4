"""Trace folders for the tests: written by the writer, then damaged by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opguard_ci.trace.model import Draw, Event, Read, StepTable, Strings, Write
from opguard_ci.trace.writer import TraceWriter
from tests.strategies import append


def manifest(**changes: Any) -> dict[str, Any]:
    """A manifest with every key."""
    return {
        "schema": 1,
        "target": "train.py:main",
        "argv": ["--lr", "0.1"],
        "cwd": ".",
        "commit": "0" * 40,
        "tree": "1" * 40,
        "edits": None,
        "environment": {"key": "k" * 16, "document": {"torch": "2.13.0"}},
        "profile": "strict",
        "level": "full",
        "scheme": "xxh3-64/1",
        "ranks": 1,
        "coverage": {"operators": 3, "hashed": 3, "unhashed": [], "unseen": []},
        "steps": [],
        "objects": {},
        "complete": False,
        "outcome": {"status": "ok", "slug": None, "message": None, "exit": 0},
        "findings": [],
        "notes": [],
        "last_operator": None,
        "tolerance": {},
        "unstable": {},
        "window": None,
        "asked_steps": None,
        **changes,
    }


def write(folder: Path, tables: Iterable[StepTable], *, complete: bool = True, **changes: Any) -> Path:
    """Write a trace folder."""
    writer = TraceWriter(folder)
    writer.write_manifest(manifest())
    steps = []
    for table in tables:
        writer.write_step(table)
        steps.append({"step": table.step, "events": len(table), "digests": {}})
    objects = writer.close()
    writer.write_manifest(manifest(**{"steps": steps, "objects": objects, "complete": complete, **changes}))
    return folder


def content(table: StepTable) -> tuple[int, int, list[Event]]:
    """All that a step says, by value."""
    return table.step, table.first, list(table.events())


def training_run(steps: int, events: int) -> list[StepTable]:
    """Steps like those of a small training run: the same operators each time, other values."""
    source = random.Random(0)
    plan = [_planned(source, row) for row in range(events)]
    strings, values, tables = Strings(), [], []
    for step in range(steps):
        table = StepTable(step, step * events, strings)
        for row, (event, back) in enumerate(plan):
            index = table.first + row
            reads = tuple(
                Read(values[index - distance], read.spec, (index - distance,), 0)
                if index >= distance
                else Read(source.getrandbits(64) or 1, read.spec, (), 2)
                for read, distance in zip(event.reads, back, strict=True)
            )
            values.append(source.getrandbits(64) or 1)
            draw = Draw(0, source.getrandbits(64), source.getrandbits(64)) if row % 100 == 0 else None
            writes = (Write(values[-1], event.writes[0].spec, 0, 0),)
            append(table, _with(event, reads, writes, draw), index)
        tables.append(table)
    return tables


def _planned(source: random.Random, row: int) -> tuple[Event, list[int]]:
    line = source.randrange(400)
    stack = "\n".join(
        f"src/model/block{line % 7}.py\t{line + depth}\tforward\tx = x + self.attention(self.norm(x))"
        for depth in range(6)
    )
    back = [source.randrange(1, 60) for _ in range(source.choice([1, 1, 1, 1, 2]))]
    event = Event(
        index=0,
        lane=0,
        step=0,
        phase="forward" if row < 250 else "backward" if row < 600 else "optimizer",
        kind="view" if row % 3 == 0 else "op",
        op=f"aten.operator_{source.randrange(60)}.default",
        module=f"blocks.{source.randrange(40)}.attention",
        stack=stack,
        args=f"self=%0, other=%1, alpha={source.randrange(250)}, dims=[0, 1], keepdim=False",
        key=None,
        flags=0,
        reads=tuple(Read(0, f"float32[{source.randrange(40)},64,32]", (), 0) for _ in back),
        writes=(Write(0, f"float32[{source.randrange(40)},64,32]", 0, 0),),
        draw=None,
    )
    return event, back


def _with(event: Event, reads: tuple[Read, ...], writes: tuple[Write, ...], draw: Draw | None) -> Event:
    fields = {name: getattr(event, name) for name in event.__slots__}
    return Event(**{**fields, "reads": reads, "writes": writes, "draw": draw})


def contract_event(section: str, name: str, value: int, spec: str = "float32[4]") -> Event:
    """One value of the contract."""
    return Event(
        0, 0, 0, "forward", "contract", section, None, None, name, None, 0, (Read(value, spec, (), 0),), (), None
    )
