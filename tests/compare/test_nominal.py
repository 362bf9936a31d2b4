"""Operands that a call names and does not read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import NO_VALUE, Event, Write

from .build import SPEC, loss, op, trace
from .running import MemoryTrace

_PARAMETER, _BUFFER = Write(30, SPEC, ~0, 0), Write(31, SPEC, ~2, 0)


def _run(garbage: int, new: int, *, first: bool = True, lr: float = 0.1) -> MemoryTrace:
    return trace([*_STATE, _fused(garbage, new, first=first, lr=lr), loss(new)])


_STATE = [op("f", [10], [20]), op("empty", [], [Write(NO_VALUE, SPEC, 0, 0)], kind="alloc")]


def _fused(garbage: int, new: int, *, first: bool, lr: float) -> Event:
    event = op("_fused_sgd_", [20, 10, garbage], [replace(_PARAMETER, value=new), _BUFFER])
    event = replace(event, reads=(*event.reads[:2], replace(event.reads[2], writers=(1,))))
    lists = "self=[%0], grads=[%1], momentum_buffer_list=[%2]"
    return replace(event, args=f"{lists}, lr={lr}, momentum=0.9, is_first_step={first}")


def test_averages_that_fused_sgd_begins_are_not_read() -> None:
    """What lay where they begin is no memory that nobody wrote, and makes no other call."""
    plain = trace([_STATE[0], op("mul", [10], [29]), op("add_", [20, 29], [replace(_PARAMETER, value=33)]), loss(33)])
    for other, cause in ((_run(77, 30), "arguments"), (plain, "code")):
        found = compare_traces(other, _run(78, 34, lr=0.2)).first_divergence
        assert found is not None
        assert (found["cause"], found["op"]) == (cause, "aten._fused_sgd_.default")
    found = compare_traces(_run(77, 30), _run(78, 30))
    assert (found.verdict, found.transient) == ("equivalent", [])


@pytest.mark.parametrize("garbage", [77, 79])
def test_later_ones_are(garbage: int) -> None:
    """Averages that go on from what nobody wrote do go on from it."""
    found = compare_traces(_run(78, 30, first=False), _run(garbage, 34, first=False)).first_divergence
    assert found is not None
    assert found["cause"] == "uninitialised"
