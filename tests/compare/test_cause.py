"""What an event says about a departure by itself."""

from __future__ import annotations

import pytest

from opguard_ci.compare.cause import argument_name, hidden_argument, hidden_write, is_overwritten
from opguard_ci.trace.model import HIDDEN, OVER, Write

from .build import SPEC, op, read


@pytest.mark.parametrize(
    ("args", "number", "name"),
    [
        ("input=%0, weight=%1, eps=1e-05", 1, "weight"),
        ("tensors=[%0, %1], dim=1", 0, "tensors[0]"),
        ("tensors=[%0, %1, %2], dim=1", 1, "tensors[1]"),
        ("tensors=[%0, %1, %2], dim=1", 2, "tensors[2]"),
        ("self=[%0], other=%10", 1, "tensor 1"),
        ("self=%0, indices=[None, %1]", 1, "indices[1]"),
        ("", 0, "tensor 0"),
    ],
)
def test_names_of_tensor_arguments(args: str, number: int, name: str) -> None:
    """By the argument that holds the tensor, also in the midst of a list."""
    assert argument_name(args, number) == name


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
