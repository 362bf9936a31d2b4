"""Digests: the same for two runs that computed the same, another one for any change of what was computed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.trace.digest import step_digests
from opguard_ci.trace.model import KINDS, OUTSIDE, STATE, Draw, Event, Read, Strings, Write
from tests.strategies import events, operator_events, table_of
from tests.trace.folders import contract_event, training_run

CALLS = tuple(kind for kind in KINDS if kind not in ("view", "contract"))


def digests(chosen: list[Event], **place: Any) -> dict[str, Any]:
    return step_digests(table_of(chosen, **place))


def an_event(**changes: Any) -> Event:
    event = Event(
        index=0,
        lane=0,
        step=0,
        phase="forward",
        kind="op",
        op="aten.add.Tensor",
        module="blocks.0",
        stack="model.py\t1\tforward\tx + y",
        args="self=%0, other=%1",
        key=None,
        flags=0,
        reads=(Read(11, "float32[4]", (), 0), Read(12, "float32[4]", (), 0)),
        writes=(Write(13, "float32[4]", 0, 0),),
        draw=Draw(0, 5, 6),
    )
    return replace(event, **changes)


@given(st.lists(events(), max_size=10), st.permutations(["a", "aten.mm.default", "float32[4,64]", "x", ""]))
def test_the_numbers_of_strings_do_not_count(chosen: list[Event], met_before: list[str]) -> None:
    """Two traces meet strings in different orders."""
    strings = Strings()
    for text in met_before:
        for name in ("op", "module", "stack", "args", "key", "spec"):
            getattr(strings, name)(text)
    assert digests(chosen) == digests(chosen, strings=strings)


@given(st.lists(events(), max_size=10), st.integers(0, 1000), st.integers(0, 1000))
def test_neither_do_the_numbers_of_events_and_steps(chosen: list[Event], first: int, step: int) -> None:
    """What ran before this step shifts event numbers only."""
    assert digests(chosen) == digests(chosen, first=first, step=step)


@given(st.lists(events(), max_size=8), st.lists(operator_events(("view",)), max_size=4), st.data())
def test_views_do_not_count(chosen: list[Event], views: list[Event], data: st.DataObject) -> None:
    """Views compute nothing: inserted anywhere, they change no digest."""
    mixed = list(chosen)
    for view in views:
        mixed.insert(data.draw(st.integers(0, len(mixed))), view)
    assert digests(mixed) == digests(chosen)


@given(st.lists(events(), max_size=8))
def test_places_in_the_code_do_not_count(chosen: list[Event]) -> None:
    """Module, stack, key, event flags and links to writers may change with a refactoring."""
    moved = [
        replace(
            event,
            module="elsewhere",
            stack=None,
            key="0",
            flags=event.flags ^ 7,
            reads=tuple(replace(read, writers=(-1,)) for read in event.reads),
        )
        for event in chosen
    ]
    assert digests(moved) == digests(chosen)


@given(st.lists(events(), max_size=8), st.randoms())
def test_lanes_are_digested_one_by_one(chosen: list[Event], source: Any) -> None:
    """How the threads' events interleave is chance; the order within each lane is not."""
    waiting = {lane: [event for event in chosen if event.lane == lane] for lane in range(3)}
    mixed = []
    while any(waiting.values()):
        mixed.append(waiting[source.choice([lane for lane in waiting if waiting[lane]])].pop(0))
    assert digests(mixed) == digests(chosen)


@given(st.lists(events(), max_size=8), st.randoms())
def test_the_order_of_contract_values_does_not_count(chosen: list[Event], source: Any) -> None:
    """Sections of the contract are sorted by name."""
    contract = [event for event in chosen if event.kind == "contract"]
    others = [event for event in chosen if event.kind != "contract"]
    source.shuffle(contract)
    assert digests(contract + others) == digests(chosen)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "aten.sub.Tensor"},
        {"args": "self=%1, other=%0"},
        {"reads": (Read(12, "float32[4]", (), 0), Read(11, "float32[4]", (), 0))},
        {"reads": (Read(11, "float32[2,2]", (), 0), Read(12, "float32[4]", (), 0))},
        {"reads": (Read(11, "float32[4]", (), 0),)},
        {"writes": (Write(14, "float32[4]", 0, 0),)},
        {"writes": (Write(13, "int32[4]", 0, 0),)},
        {"writes": (Write(13, "float32[4]", ~0, 0),)},
        {"writes": ()},
        {"draw": None},
        {"draw": Draw(0, 5, 7)},
        {"draw": Draw(0, 4, 6)},
        {"phase": "backward"},
        {"lane": 1},
    ],
)
def test_every_change_of_a_call_counts(change: dict[str, Any]) -> None:
    """Operator, arguments, values, specs, slots, states, phase and lane."""
    before, after = an_event(op="first"), an_event(op="last")
    assert digests([before, an_event(**change), after]) != digests([before, an_event(), after])


def test_that_nothing_was_drawn_is_not_a_draw_of_nothing() -> None:
    """A generator whose state is 0 differs from no generator; which generator object it was does not count."""
    assert digests([an_event(draw=None)]) != digests([an_event(draw=Draw(0, 0, 0))])
    assert digests([an_event(draw=Draw(1, 2, 3))]) == digests([an_event(draw=Draw(0, 2, 3))])


@given(st.lists(operator_events(CALLS), min_size=2, max_size=5), st.data())
def test_the_order_within_a_lane_counts(chosen: list[Event], data: st.DataObject) -> None:
    """Calls of one phase and lane that change places give another digest."""
    stream = [replace(event, lane=0, phase="forward", op=f"op {place}") for place, event in enumerate(chosen)]
    order = data.draw(st.permutations(range(len(stream))))
    same = order == sorted(order)
    assert (digests([stream[place] for place in order])["operators"] == digests(stream)["operators"]) == same


def test_reads_and_writes_belong_to_their_events() -> None:
    """A tensor that moves from one call to the next is a change, although the sequence of tensors is the same."""
    one, two = Read(1, "f", (), 0), Read(2, "f", (), 0)
    left = [an_event(reads=(one, two), writes=()), an_event(reads=(), writes=())]
    right = [an_event(reads=(one,), writes=()), an_event(reads=(two,), writes=())]
    assert digests(left) != digests(right)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("loss", "loss"),
        ("gradient", "gradients"),
        ("parameter", "parameters"),
        ("buffer", "buffers"),
        ("optimizer", "optimizer"),
        ("rng", "rng"),
        ("value", "values"),
        ("final", "final"),
    ],
)
def test_each_section_has_its_digest(section: str, key: str) -> None:
    """Name, value and spec count, in this section's digest only; absent sections have none."""
    found = digests([contract_event(section, "a", 1), contract_event(section, "b", 2)])
    own = [key] if section in ("gradient", "rng") else [key, "contract"]
    assert sorted(found) == sorted([*own, "operators"])
    assert len(found[key]) == 32
    assert found["operators"] == {}
    others = [
        [contract_event(section, "a", 2), contract_event(section, "b", 1)],
        [contract_event(section, "a", 1), contract_event(section, "c", 2)],
        [contract_event(section, "a", 1), contract_event(section, "b", 2, "int32[4]")],
        [contract_event(section, "a", 1)],
    ]
    assert len({found[key], *(digests(other)[key] for other in others)}) == 5


def test_data_is_what_came_from_outside() -> None:
    """Values from memory that no operator wrote, and what the data phase made; each once, in order."""
    batch, weight = Read(1, "int64[4]", (), OUTSIDE), Read(2, "float32[4]", (), OUTSIDE | STATE)
    loaded = an_event(phase="data", writes=(Write(3, "int64[4]", 0, 0),), reads=())
    plain = digests([an_event(reads=(batch,)), loaded])
    assert plain["data"] == digests([an_event(reads=(batch, weight)), an_event(reads=(batch,)), loaded])["data"]
    assert plain["data"] != digests([loaded, an_event(reads=(batch,))])["data"]
    assert plain["data"] != digests([loaded])["data"]
    assert "data" not in digests([an_event(reads=(weight,))])
    assert "data" not in digests([])


def test_phases_and_lengths_of_digests() -> None:
    """One digest of 128 bits per phase that has calls."""
    found = digests([an_event(), an_event(phase="optimizer"), an_event(phase="data", kind="view")])
    assert list(found["operators"]) == ["forward", "optimizer"]
    assert all(len(digest) == 32 for digest in found["operators"].values())


def test_the_contract_digest_knows_values_and_no_names() -> None:
    """Other words mean another contract; a renaming, a gradient or a generator does not make one."""
    found = digests([contract_event("parameter", "a", 1), contract_event("loss", "loss", 2)])["contract"]
    renamed = [contract_event("loss", "total", 2), contract_event("parameter", "weight", 1)]
    soft = [contract_event("gradient", "grad.a", 3), contract_event("rng", "cpu", 4)]
    assert digests([*renamed, *soft])["contract"] == found
    others = [
        [contract_event("parameter", "a", 1)],
        [contract_event("parameter", "a", 2), contract_event("loss", "loss", 1)],
        [contract_event("buffer", "a", 1), contract_event("loss", "loss", 2)],
        [contract_event("parameter", "a", 1), contract_event("parameter", "b", 1), contract_event("loss", "loss", 2)],
    ]
    assert len({found, *(digests(other)["contract"] for other in others)}) == 5


def test_digests_do_not_change_from_version_to_version() -> None:
    """Goldens hold digests: this one must stay, or the schema number must change."""
    found = digests([an_event(), contract_event("loss", "loss", 7)])
    assert found == {
        "loss": "57c20a4e1af6fb016f1e3382b15b71a1",
        "contract": "1f4bbfcb6b6eefd664a7fba638021881",
        "operators": {"forward": "ae11a4d08975255f5edc4325a962a7a6"},
    }


def test_digests_are_quick() -> None:
    """A microsecond or two an event; the bound leaves room for a busy machine."""
    tables = training_run(5, 670)
    begun = time.process_time()
    for table in tables:
        step_digests(table)
    assert (time.process_time() - begun) / (5 * 670) < 20e-6
