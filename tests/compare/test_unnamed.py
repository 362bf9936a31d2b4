"""A contract value that one run cannot name is no difference where it made it all the same."""

from __future__ import annotations

import pytest

from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import HIDDEN, Event, Write

from .build import SPEC, contract, op, trace

UPDATE = op("update", [10], [20], extra="a=1")


def _over(value: int, result: int) -> Event:
    """An operator that writes in place over ``value``."""
    return op("add_", [value], [Write(result, SPEC, -1, 0)])


def _verdict(named: list[Event], unnamed: list[Event], section: str = "buffer") -> str:
    """The verdict about two runs of which one names what the first operator made; the same from both sides."""
    sides = trace([*named, contract(section, "a", 20)]), trace(unnamed)
    found, swapped = compare_traces(*sides), compare_traces(*reversed(sides))
    assert found.verdict == swapped.verdict
    if found.verdict == "equivalent":
        said = "a is in the contract of the {} only; the {} makes it by the same operators."
        assert found.notes == [said.format("reference", "candidate")]
        assert swapped.notes == [said.format("candidate", "reference")]
    return found.verdict


@pytest.mark.parametrize("section", ["loss", "buffer", "parameter", "optimizer"])
def test_made_by_the_same_call(section: str) -> None:
    """What is seen of a run may be seen of one only."""
    assert _verdict([UPDATE], [UPDATE], section) == "equivalent"


@pytest.mark.parametrize("section", ["value", "final"])
def test_a_promise_that_is_not_kept(section: str) -> None:
    """What a run names itself must be named by the other."""
    assert _verdict([UPDATE], [UPDATE], section) == "diverged"


def test_made_by_another_call() -> None:
    """That the value exists somewhere proves nothing, nor does the call with another result."""
    assert _verdict([UPDATE], [op("other", [10], [20])]) == "diverged"
    assert _verdict([UPDATE], [op("update", [10], [21], extra="a=1")]) == "diverged"
    assert _verdict([UPDATE], []) == "diverged"


def test_written_over_by_one_run_alone() -> None:
    """The other run made the value, and may not have it any more."""
    assert _verdict([UPDATE], [UPDATE, _over(20, 21)]) == "diverged"
    assert _verdict([UPDATE], [UPDATE, _over(30, 31)]) == "equivalent"
    assert _verdict([_over(20, 30), UPDATE], [UPDATE, _over(30, 31)]) == "equivalent"


def test_written_in_hiding() -> None:
    """As batch_norm writes its running averages: both runs must have written the same."""
    norm, other = (op("norm", [9], [10, Write(value, SPEC, ~0, HIDDEN)]) for value in (20, 21))
    assert _verdict([norm], [norm]) == "equivalent"
    assert _verdict([norm], [other]) == "diverged"
    assert _verdict([UPDATE], [UPDATE, op("norm", [20], [10, Write(20, SPEC, ~0, HIDDEN)])]) == "diverged"


def test_from_an_earlier_step() -> None:
    """A value that stays as it was made before, unless something was written over it on the way."""
    named = trace([UPDATE], [], [contract("buffer", "a", 20)])
    assert compare_traces(named, trace([UPDATE], [], [])).passed
    assert not compare_traces(named, trace([UPDATE], [_over(20, 21)], [])).passed


def test_nobody_made_it() -> None:
    """A value from outside is a difference, and so is one with a part from elsewhere."""
    assert not compare_traces(trace([contract("buffer", "a", 20)]), trace([])).passed
    parts = contract("buffer", "a", 20, writers=(0, 1))
    assert not compare_traces(trace([UPDATE, op("f", [11], [21]), parts]), trace([UPDATE])).passed
    assert not compare_traces(trace([UPDATE, contract("buffer", "a", 22, writers=(0,))]), trace([UPDATE])).passed
