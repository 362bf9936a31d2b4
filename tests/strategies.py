"""Hypothesis strategies that several test files share: events, steps, traces."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from opguard_ci.trace.model import KINDS, NULL, PHASES, Draw, Event, Read, StepTable, Strings, Write

VALUES = st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1))
TEXTS = st.one_of(
    st.sampled_from(["aten.add.Tensor", "aten.mm.default", "blocks.0.norm", "", "a\tb\nc", "\0", "é𝄞"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
SPECS = st.sampled_from(["float32[]", "float32[4,64]", "int64[0]", "bool[2]", "bfloat16[4,64] strided"])
SECTIONS = ("loss", "gradient", "parameter", "buffer", "optimizer", "rng", "value", "final")


@st.composite
def operator_events(draw: Any, kinds: tuple[str, ...] = KINDS) -> Event:
    """One event with index and writers that `table_of` puts right."""
    kind = draw(st.sampled_from([kind for kind in kinds if kind != "contract"]))
    reads = tuple(
        draw(
            st.lists(
                st.builds(
                    Read, VALUES, SPECS, st.lists(st.integers(NULL, 30), max_size=3).map(tuple), st.integers(0, 31)
                ),
                max_size=3,
            )
        )
    )
    writes = tuple(
        draw(
            st.lists(
                st.builds(Write, VALUES, SPECS, st.integers(-len(reads), 3), st.integers(0, 7)),
                max_size=3,
            )
        )
    )
    return Event(
        index=0,
        lane=draw(st.integers(0, 2)),
        step=0,
        phase=draw(st.sampled_from(PHASES)),
        kind=kind,
        op=draw(TEXTS),
        module=draw(st.none() | TEXTS),
        stack=draw(st.none() | TEXTS),
        args=draw(TEXTS),
        key=draw(st.none() | TEXTS),
        flags=draw(st.integers(0, 7)),
        reads=reads,
        writes=writes,
        draw=draw(st.none() | st.builds(Draw, st.integers(0, 3), VALUES, VALUES)),
    )


@st.composite
def contract_events(draw: Any) -> Event:
    """One contract value."""
    read = Read(draw(VALUES), draw(SPECS), (), draw(st.integers(0, 31)))
    section, name = draw(st.sampled_from(SECTIONS)), draw(TEXTS)
    key = draw(st.none() | TEXTS)
    return Event(0, 0, 0, "forward", "contract", section, None, None, name, key, 0, (read,), (), None)


def events(kinds: tuple[str, ...] = KINDS) -> st.SearchStrategy[Event]:
    """Events of all kinds."""
    return operator_events(kinds) | contract_events()


def table_of(events: list[Event], *, step: int = 0, first: int = 0, strings: Strings | None = None) -> StepTable:
    """The step that holds these events in this order, renumbered from ``first``; writers that do not exist are cut."""
    table = StepTable(step, first, strings or Strings())
    for row, event in enumerate(events):
        append(table, event, first + row)
    return table


def append(table: StepTable, event: Event, index: int) -> None:
    """Add an event to the end of a step."""
    strings = table.strings
    table.lane.append(event.lane)
    table.phase.append(PHASES.index(event.phase))
    table.kind.append(KINDS.index(event.kind))
    table.op.append(strings.op(event.op))
    table.module.append(NULL if event.module is None else strings.module(event.module))
    table.stack.append(NULL if event.stack is None else strings.stack(event.stack))
    table.args.append(strings.args(event.args))
    table.key.append(NULL if event.key is None else strings.key(event.key))
    table.flags.append(event.flags)
    table.generator.append(NULL if event.draw is None else event.draw.generator)
    table.state_before.append(0 if event.draw is None else event.draw.before)
    table.state_after.append(0 if event.draw is None else event.draw.after)
    for read in event.reads:
        table.read_value.append(read.value)
        table.read_spec.append(strings.spec(read.spec))
        table.read_flags.append(read.flags)
        table.writers.extend(writer for writer in read.writers if writer < index)
        table.writer_offsets.append(len(table.writers))
    table.read_offsets.append(len(table.read_value))
    for write in event.writes:
        table.write_value.append(write.value)
        table.write_spec.append(strings.spec(write.spec))
        table.write_slot.append(write.slot)
        table.write_flags.append(write.flags)
    table.write_offsets.append(len(table.write_value))


@st.composite
def step_tables(draw: Any, max_events: int = 12) -> StepTable:
    """One step, numbered from 0."""
    return table_of(draw(st.lists(events(), max_size=max_events)))


@st.composite
def traces(draw: Any, max_steps: int = 4, max_events: int = 8) -> list[StepTable]:
    """The steps of one trace: they share their strings, and event numbers run on."""
    numbers = sorted(draw(st.sets(st.integers(-1, 9), max_size=max_steps)))
    strings, tables, first = Strings(), [], 0
    for number in numbers:
        table = table_of(draw(st.lists(events(), max_size=max_events)), step=number, first=first, strings=strings)
        tables.append(table)
        first += len(table)
    return tables
