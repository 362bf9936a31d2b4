"""Names, specs and keys of calls, and the look-ups of one run."""

from __future__ import annotations

import pytest

from opguard_ci.compare.traces import side_of
from opguard_ci.compare.values import (
    base_name,
    call_key,
    full_key,
    is_empty,
    is_weak_spec,
    num_elements,
    read_values,
    result,
    written,
)
from opguard_ci.trace.model import HIDDEN, NO_VALUE, UNREAD, Write

from .build import SPEC, op, read, trace, weak


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("aten.add.Tensor", "add"),
        ("aten.add_.Tensor", "add"),
        ("aten._foreach_add_.Scalar", "add"),
        ("aten._softmax.default", "_softmax"),
        ("opguard_tests.blend.default", "blend"),
        ("flex_attention", "flex_attention"),
    ],
)
def test_base_names(name: str, base: str) -> None:
    """An operator's in-place, list and other overloads compute the same thing."""
    assert base_name(name) == base


@pytest.mark.parametrize(
    ("spec", "empty", "elements", "is_weak"),
    [
        ("float32[4,64]", False, 256, False),
        ("float32[]", False, 1, True),
        ("float32[2,2]", False, 4, True),
        ("float32[5]", False, 5, False),
        ("int64[4,64]", False, 256, True),
        ("bool[100]", False, 100, True),
        ("uint8[100]", False, 100, True),
        ("float32[0]", True, 0, True),
        ("float32[3,0,4]", True, 0, True),
        ("float32[10]", False, 10, False),
        ("float32[20,30] sparse_coo", False, 600, False),
    ],
)
def test_specs(spec: str, empty: bool, elements: int, is_weak: bool) -> None:
    """Shapes are read from the description of a tensor; what is tiny or of integers proves nothing."""
    assert (is_empty(spec), num_elements(spec), is_weak_spec(spec)) == (empty, elements, is_weak)


def test_a_call_is_what_determines_its_result() -> None:
    """Operator, arguments, inputs, shapes and generator state; not the outputs, module or stack."""
    call = op("f", [10], [20], extra="a=1", draw=(1, 2))
    same = op("f", [10], [21], extra="a=1", draw=(1, 2), module="elsewhere", phase="backward")
    assert call_key(call) == call_key(same)
    assert full_key(call) != full_key(same)
    others = [
        op("g", [10], [20], extra="a=1", draw=(1, 2)),
        op("f", [11], [20], extra="a=1", draw=(1, 2)),
        op("f", [10], [20], extra="a=2", draw=(1, 2)),
        op("f", [10], [20], extra="a=1", draw=(3, 2)),
        op("f", [10], [Write(20, "float32[9]", 0, 0)], extra="a=1", draw=(1, 2)),
    ]
    assert all(call_key(call) != call_key(other) for other in others)


def test_what_is_only_overwritten_is_not_read() -> None:
    """Its old content does not matter."""
    event = op("fill_", [read(15, UNREAD), 10], [20])
    assert read_values(event) == (NO_VALUE, 10)


def test_hidden_writes_are_not_results() -> None:
    """They are looked at on their own."""
    event = op("f", [10], [20, Write(30, SPEC, ~0, HIDDEN)])
    assert (result(event), len(written(event))) == ((20,), 1)


def test_a_view_of_a_step_knows_what_occurs_in_it() -> None:
    """Values read and written, by which operator, weak and hidden ones; no value is no value."""
    run = trace([op("f", [10], [20, weak(21, 1)]), op("g", [read(NO_VALUE)], [Write(31, SPEC, ~0, HIDDEN)])])
    events = run.events()
    view = side_of(run).view(0)
    assert view.known.tolist() == [10, 20, 21, 31]
    assert all(view.knows(value) == (value in view.known) for value in (NO_VALUE, 9, 10, 20, 31, 32))
    assert (view.made("f"), view.made("g"), view.made("h")) == ({20, 21}, {31}, set())
    assert (view.hidden, view.weak) == ({"g"}, {21})
    assert view.calls(view.hashes.call[0]) == [events[0]]


def test_a_side_reads_steps_when_they_are_asked_for() -> None:
    """Each once; writers of earlier steps are found; a step that the run lacks is empty."""
    run = trace([op("f", [10], [20])], [op("g", [20], [30])], [op("h", [30], [40])])
    asked: list[int] = []
    original = run.arrays
    run.arrays = lambda number: asked.append(number) or original(number)  # type: ignore[method-assign,func-returns-value]
    side = side_of(run)
    assert asked == []
    event = side.view(2).events[0]
    assert [writer.op for writer in side.writers(event.reads[0])] == ["aten.g.default"]
    assert side.view(2) is side.view(2)
    assert side.view(7).events == []
    assert side.event(999) is None
    assert sorted(asked) == [1, 2]
