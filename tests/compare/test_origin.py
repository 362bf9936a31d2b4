"""Where one run first does something that the other does not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_ci.compare import compare_traces
from opguard_ci.compare.origin import Origins
from opguard_ci.compare.traces import side_of
from opguard_ci.trace.model import HIDDEN, NO_VALUE, OVER, STRIDED, UNREAD, Event, StepTable, Write
from tests.strategies import traces

from .build import SPEC, first, loss, op, read, trace, weak
from .running import MemoryTrace


def _origins(reference: list[Event], candidate: list[Event]) -> Origins:
    return Origins(side_of(trace(candidate)), side_of(trace(reference)))


def _indices(origins: Origins, step: int = 0) -> list[int]:
    return [origin.index for origin in origins.all_in(step)]


@given(traces())
def test_a_run_does_not_depart_from_itself(tables: list[StepTable]) -> None:
    """Whatever its events look like."""
    side = side_of(MemoryTrace(tables))
    origins = Origins(side, side)
    for step in side.steps:
        assert _indices(origins, step) == []
        assert origins.behind(event for event in side.view(step).events if event.kind == "contract") == []


@settings(max_examples=60)
@given(traces(), traces())
def test_what_is_passed_over_is_no_departure(left: list[StepTable], right: list[StepTable]) -> None:
    """The operators that are not looked at more closely would have been found clean."""
    origins = Origins(side_of(MemoryTrace(left)), side_of(MemoryTrace(right)))
    for step in origins.mine.steps:
        every = [origins.origin(event) for event in origins.mine.view(step).events]
        assert list(origins.all_in(step)) == [origin for origin in every if origin is not None]


@given(st.integers(1, 8), st.integers(0, 7))
def test_a_chain_departs_where_it_was_changed(length: int, place: int) -> None:
    """Of a chain of operators, the one that computes something else is the only origin, however far the end is."""
    place %= length
    good = [op(f"f{n}", [10 + n], [11 + n]) for n in range(length)]
    bad = [op(f"f{n}", [10 + n if n <= place else 110 + n], [11 + n if n < place else 111 + n]) for n in range(length)]
    origins = _origins([*good, loss(10 + length)], [*bad, loss(110 + length)])
    assert _indices(origins) == [place]
    sink = origins.mine.view(0).events[-1]
    (found,) = origins.behind([sink])
    assert (found.index, found.contra, found.leaf) == (place, True, None)


def test_two_departures_are_told_in_order() -> None:
    """Both that reach the sink; not the one that does not."""
    good = [op("f", [10], [20]), op("g", [10], [21]), op("k", [10], [22]), op("add", [20, 21], [30]), loss(30)]
    bad = [op("f", [10], [25]), op("g", [10], [26]), op("k", [10], [27]), op("add", [25, 26], [31]), loss(31)]
    origins = _origins(good, bad)
    assert _indices(origins) == [0, 1, 2]
    assert [o.index for o in origins.behind([origins.mine.view(0).events[-1]])] == [0, 1]


def test_status_of_reads() -> None:
    """Known, dirty, or from one of three kinds of memory that no operator wrote."""
    good = [op("f", [10], [20]), op("g", [20], [30])]
    bad = [
        op("h", [10], [21]),
        op("empty", [], [NO_VALUE], kind="alloc"),
        op("k", [10, 21, read(40, OVER, writers=(0,)), read(41, writers=(1,)), read(42, writers=()), read(43, UNREAD)]),
    ]
    origins = _origins(good, bad)
    event = origins.mine.view(0).events[2]
    found = [origins.status(event, item) for item in event.reads]
    assert [status for status, _, _ in found] == ["clean", "dirty", "leaf", "leaf", "leaf", "clean"]
    assert [leaf.kind for _, _, leaf in found if leaf is not None] == ["overwritten", "uninitialised", "outside"]


def test_an_undefined_input_makes_no_kernel() -> None:
    """Two calls on memory that has no value need not agree."""
    good, bad = [op("f", [read(NO_VALUE)], [20])], [op("f", [read(NO_VALUE)], [21])]
    assert not _origins(good, bad).contra(trace(bad).events()[0])


def test_empty_tensors_are_always_known() -> None:
    """They hold nothing that could differ."""
    bad = [op("f", [read(55, spec="float32[0]")], [weak(56, spec="float32[0]")])]
    origins = _origins([op("g", [10], [20])], bad)
    assert _indices(origins) == []


def test_a_result_that_is_one_of_several_is_no_contradiction() -> None:
    """A call made twice with two results, of which this is one: a race in both runs, not a departure."""
    twice = [op("f", [10], [20]), op("f", [10], [21])]
    assert not _origins(twice, [op("f", [10], [21])]).contra(trace([op("f", [10], [21])]).events()[0])
    assert _origins(twice, [op("f", [10], [22])]).contra(trace([op("f", [10], [22])]).events()[0])


def test_producers_are_seen_through_copies() -> None:
    """A value that was cloned and copied into a buffer still comes from the operator that made it."""
    events = [
        op("f", [10], [20]),
        op("clone", [20], [20], kind="copy"),
        op("clone", [read(20, writers=(1,))], [20], kind="copy"),
        op("g", [read(20, writers=(2,))], [30]),
    ]
    origins = _origins(events, events)
    assert [event.index for event in origins.producers(origins.mine.view(0).events[3].reads[0])] == [0]


def test_written_over_by_something_inserted() -> None:
    """What the candidate alone wrote in place over an operand is where it departs, though its result exists."""
    shared = [op("k", [11], [21]), op("a", [10], [20])]
    inserted = op("mul_", [20], [Write(21, SPEC, -1, 0)])
    reference = trace([*shared, op("f", [20], [30]), loss(30)])
    assert first(reference, trace([*shared, inserted, op("f", [21], [31]), loss(31)])) == ("code", 2, "candidate")


def test_a_sum_in_another_order() -> None:
    """As many calls with other operands, moved with what they add: none of them is missing."""
    ones, twos = (op("mm", [n], [n + 10]) for n in (1, 2))
    reference = trace([ones, op("add", [10, 11], [20]), twos, op("add", [20, 12], [21]), loss(21)])
    candidate = trace([twos, op("add", [10, 12], [30]), ones, op("add", [30, 11], [31]), loss(31)])
    assert first(reference, candidate) == ("inputs", 1, "candidate")
    assert first(candidate, reference) == ("inputs", 1, "candidate")
    shorter = trace([twos, op("add", [10, 12], [30]), loss(30)])
    assert first(reference, shorter) == ("missing", 0, "reference")


def test_another_memory_layout() -> None:
    """A kernel that gives other bits for the same values in another layout: that is said."""
    runs = [trace([op("f", [read(10, flags)], [made]), loss(made)]) for flags, made in ((0, 20), (STRIDED, 21))]
    found = compare_traces(*runs).first_divergence
    assert found is not None
    assert (found["cause"], found["detail"]) == (
        "kernel",
        "same operator, arguments and values, but another memory layout of t0; other output",
    )


def test_a_known_value_that_was_put_there_in_hiding_is_no_other_operand() -> None:
    """The operator that left its result in a read-only argument is to blame, not who reads that argument next."""
    hidden = Write(20, SPEC, ~0, HIDDEN)
    good = [op("f", [10], [20], extra="fast=False"), op("g", [read(10, writers=())], [30]), loss(30)]
    bad = [op("f", [10], [20, hidden], extra="fast=True"), op("g", [read(20, writers=(0,))], [31]), loss(31)]
    assert first(trace(good), trace(bad)) == ("hidden-mutation", 0, "candidate")


def test_a_known_value_that_nobody_seen_put_there_overwrote_what_was_there() -> None:
    """Unless the other run had it put there too."""
    good = [op("f", [10], [20]), op("h", [10], [21]), op("g", [20], [30]), loss(30)]
    bad = [op("f", [10], [20]), op("h", [10], [21]), op("g", [read(21, OVER, writers=(0,))], [31]), loss(31)]
    assert first(trace(good), trace(bad)) == ("overwritten", 2, "candidate")
    assert first(trace(bad), trace(good)) == ("overwritten", 2, "reference")
    both = [*bad[:2], op("g", [read(21, OVER, writers=(0,))], [32], extra="eps=2"), loss(32)]
    assert first(trace(bad), trace(both)) == ("arguments", 2, "candidate")
