"""The same call on other operands: what is said of them."""

from __future__ import annotations

from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import Event, Write

from .build import SPEC, loss, op, trace

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
