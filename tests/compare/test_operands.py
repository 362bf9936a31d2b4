"""The same call on other operands: what is said of them."""

from __future__ import annotations

from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import Event, Write

from .build import SPEC, contract, loss, op, trace

_SCALED = op("scale_", [20, 11], [Write(21, SPEC, ~0, 0)])


def _said(reference: list[Event], candidate: list[Event]) -> tuple[str, str, str]:
    found = compare_traces(trace(reference), trace(candidate)).first_divergence
    assert found is not None
    return found["cause"], found["op"], found["detail"]


def test_another_order_is_told_with_what_comes_later() -> None:
    """An operand read before it is written in place, where the other run reads it after, and the other way round."""
    made = op("f", [10], [20])
    after, before = [made, _SCALED, op("g", [21], [30]), loss(30)], [made, op("g", [20], [31]), _SCALED, loss(31)]
    op_ = "aten.g.default"
    assert _said(after, before) == ("inputs", op_, "read before aten.scale_.default, not after it")
    assert _said(before, after) == ("inputs", op_, "read after aten.scale_.default, not before it")


def _one_of(reference: list[Event], candidate: list[Event]) -> tuple[str, str, list[str]]:
    found = compare_traces(trace(reference), trace(candidate)).first_divergence
    assert found is not None
    return found["cause"], found["side"], found.get("one_of", [])


def test_memory_from_outside_that_is_first_seen_in_backward_may_have_been_refilled() -> None:
    """An array behind the batch is filled again before the backward pass, where the other run has a copy of it."""

    def run(batch: int, later: int, new: int) -> list[Event]:
        return [op("f", [batch], [20]), op("mm", [20, later], [new], phase="backward"), contract("parameter", "w", new)]

    copied = [op("copy", [10], [10], kind="copy"), *run(10, 10, 30)]
    both = ["data", "overwritten"]
    assert _one_of(copied, run(10, 11, 31)) == ("data", "candidate", both)
    assert _one_of(run(10, 11, 31), copied)[::2] == ("data", both)
    assert _one_of(run(10, 10, 30), [*run(12, 12, 31)])[::2] == ("data", [])


def test_results_that_exist_in_both_and_were_exchanged_are_no_other_order() -> None:
    """Both runs make both, and a reader takes the one for the other."""
    made = [op("f", [10], [20]), op("f", [11], [21])]
    reference, candidate = [*made, op("g", [20], [30]), loss(30)], [*made[::-1], op("g", [21], [31]), loss(31)]
    assert _said(reference, candidate)[::2] == ("inputs", "t0 float32[8,8] is another value")
