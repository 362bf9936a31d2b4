"""Operands that are other views of one value, and what is said of them."""

from __future__ import annotations

from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import Event

from .build import copy, first, loss, op, read, trace


def view(source: int, shown: int, args: str, name: str = "slice") -> Event:
    """A view of a value."""
    return op(name, [source], [shown], extra=args, kind="view")


def _runs(left: list[Event], right: list[Event], outside: int = 10) -> tuple[tuple[str, int, str] | None, str]:
    """What is said of two runs that begin with a value from outside and end with a loss."""
    sides = trace([op("f", [outside], [60]), *left]), trace([op("f", [outside], [60]), *right])
    found = compare_traces(*sides).first_divergence
    return first(*sides), "" if found is None else found["detail"]


def use(value: int, made: int, *writers: int) -> list[Event]:
    """What reads a value from outside, and the loss."""
    return [op("g", [read(value, writers=writers)], [made]), loss(made)]


def test_another_part() -> None:
    """Rows off by one: the same tensor, and the arguments of both views."""
    left, right = [view(10, 20, "start=0"), *use(20, 30)], [view(10, 21, "start=1"), *use(21, 31)]
    assert _runs(left, right) == (
        ("inputs", 2, "candidate"),
        "t0 float32[8,8] is another view of the same tensor: slice(start=0) -> slice(start=1)",
    )


def test_a_view_that_was_left_out() -> None:
    """All of a tensor in place of a view of it."""
    left, right = [view(10, 20, "dim=0", "_conj"), *use(20, 30)], use(10, 31)
    assert _runs(left, right)[1].endswith("the same tensor: _conj(dim=0) -> all of it")


def test_views_of_views() -> None:
    """Are told from the value on that both runs have."""
    left = [view(10, 20, "a=1"), view(20, 21, "b=1"), *use(21, 30)]
    right = [view(10, 20, "a=1"), view(20, 22, "b=2"), *use(22, 31)]
    assert _runs(left, right)[1].endswith("the same tensor: slice(b=1) -> slice(b=2)")


def test_memory_that_a_tensor_was_set_to() -> None:
    """A loader's workers send batches as memory to which an empty tensor is set: that is no view of the empty one."""
    left, right = ([view(10, 20 + n, "offset=0", "set_"), *use(20 + n, 30 + n)] for n in (0, 1))
    assert _runs(left, right)[1] == "t0 float32[8,8] is another value"


def test_views_of_other_values() -> None:
    """Another value from outside stays data."""
    left, right = [view(11, 20, "a=1"), *use(20, 30)], [view(12, 21, "a=2"), *use(21, 31)]
    assert _runs(left, right)[0] == ("data", 2, "candidate")


def test_an_operator_that_was_left_out_before_a_view() -> None:
    """The candidate shows what went into it."""
    left = [op("flip", [10], [11]), view(11, 20, "a=1"), *use(20, 30, 1)]
    right = [view(10, 21, "a=1"), *use(21, 31)]
    assert _runs(left, right)[0] == ("missing", 1, "reference")


def test_another_output_of_a_view() -> None:
    """Of a view with several outputs it is said which."""
    both = op("split", [10], [20, 21], extra="size=8", kind="view")
    left, right = [both, *use(20, 30), op("h", [21], [40])], [both, *use(21, 31), op("h", [20], [41])]
    assert _runs(left, right)[1].endswith("the same tensor: split(size=8)[0] -> split(size=8)[1]")


def test_a_copy_into_another_view() -> None:
    """The views through which both write are left out, as those of what they copy."""
    sides = [[view(10, 20, "x=1"), view(90, 91, f"start={n}"), copy(20), *use(50 + n, 30 + n, 0, 3)] for n in (0, 4)]
    assert _runs(*sides) == (
        ("inputs", 3, "candidate"),
        "self float32[8,8] is another view of the same tensor: slice(start=0) -> slice(start=4)",
    )
