"""What an event says about a departure by itself."""

from __future__ import annotations

from opguard_ci.compare.cause import hidden_argument, hidden_write, is_overwritten
from opguard_ci.trace.model import HIDDEN, OVER, Write

from .build import SPEC, op, read


def test_hidden_writes() -> None:
    """An argument that was changed though its schema calls it read-only."""
    event = op("f", [10, 11], [20, Write(12, SPEC, ~1, HIDDEN)])
    assert hidden_write(event)
    assert hidden_argument(event) == "t1"
    assert not hidden_write(op("f", [10], [20]))


def test_overwritten_reads() -> None:
    """Of an operator; a copy passes the mark on instead."""
    assert is_overwritten(op("f", [read(10, OVER)]))
    assert not is_overwritten(op("clone", [read(10, OVER)], kind="copy"))
    assert not is_overwritten(op("f", [10]))
