"""Runs at level ``op``: what follows where inputs were not looked at, and what is left open."""

from __future__ import annotations

from typing import Any

import pytest

from opguard_ci.compare import compare_traces
from opguard_ci.report.layout import plain
from opguard_ci.report.text import render
from opguard_ci.trace.model import ASSUMED, OVER, Event

from .build import contract, copy, loss, op, read, trace
from .running import MemoryTrace


def _assumed(value: int, *writers: int) -> Any:
    return read(value, ASSUMED, writers=writers or None)


def _said(reference: list[Event], candidate: list[Event], *levels: str) -> dict[str, Any]:
    left, right = levels or ("op", "op")
    found = compare_traces(trace(reference, level=left), trace(candidate, level=right)).to_json()
    assert found["first_divergence"] is not None
    return dict(found["first_divergence"])


def test_a_kernel_or_a_write_that_nobody_looked_for() -> None:
    """The same call on inputs that were not looked at gave something else: two causes are left."""
    run = [op("mul", [10], [20]), op("exp", [_assumed(20)], [21]), loss(21)]
    other = [op("mul", [10], [20]), op("exp", [_assumed(20)], [31]), loss(31)]
    found = _said(run, other)
    assert (found["cause"], found["event"], found["one_of"]) == ("kernel", 1, ["kernel", "overwritten"])
    text = plain(render(compare_traces(trace(run, level="op"), trace(other, level="op")).to_json()))
    assert "One of: kernel, overwritten." in text and "same input bits" not in text


def test_a_kernel_whose_inputs_were_looked_at() -> None:
    """A look settles it, whatever the level."""
    run = [op("mul", [10], [20]), op("exp", [20], [21]), loss(21)]
    other = [op("mul", [10], [20]), op("exp", [20], [31]), loss(31)]
    found = _said(run, other)
    assert (found["cause"], "one_of" in found) == ("kernel", False)


@pytest.mark.parametrize("side", ["candidate", "reference"])
@pytest.mark.parametrize("finder", ["contract", "operator"])
def test_a_write_that_is_found_late(side: str, finder: str) -> None:
    """The bytes are found changed after they were read: that explains the other output, and the report says so."""
    clean = [op("mul", [10], [20]), op("exp", [_assumed(20, 0)], [21]), loss(21)]
    found_by = contract("parameter", "w", 29, flags=OVER, writers=(0,))
    if finder == "operator":
        found_by = op("sum", [read(29, OVER, writers=(0,))], [40])
    changed = [op("mul", [10], [20]), op("exp", [_assumed(20, 0)], [31]), found_by, loss(31)]
    same = contract("parameter", "w", 20, writers=(0,)) if finder == "contract" else op("sum", [read(20)], [41])
    clean.insert(2, same)
    found = _said(clean, changed) if side == "candidate" else _said(changed, clean)
    assert (found["cause"], found["event"], found["side"]) == ("overwritten", 1, side)
    assert "found late" in found["detail"]


def test_a_write_after_a_look_explains_nothing_before_it() -> None:
    """Between the operator and the find somebody looked, and the bytes were as they had been."""
    tail = [op("sum", [read(20, writers=(0,))], [50]), op("sum", [read(29, OVER, writers=(0,))], [51])]
    run = [op("mul", [10], [20]), op("exp", [_assumed(20, 0)], [21]), *tail, loss(21)]
    other = [op("mul", [10], [20]), op("exp", [_assumed(20, 0)], [31]), *tail, loss(31)]
    assert _said(run, other)["cause"] == "kernel"


@pytest.mark.parametrize("through_copy", [False, True])
def test_a_view_shows_what_its_like_does_not(through_copy: bool) -> None:
    """A slice of the same memory, which nobody looked at as a whole, has another content: it was overwritten."""

    def run(part: int, made: int) -> list[Event]:
        shown = op("slice", [_assumed(20, 0)], [part], kind="view")
        passed = [copy(read(part, writers=(0,)))] if through_copy else []
        reader = op("exp", [read(part, writers=(2,) if through_copy else (0,))], [made])
        return [op("mul", [10], [20]), shown, *passed, reader, loss(made)]

    # Which run it was cannot be told.

    found = _said(run(30, 40), run(31, 41))
    assert (found["cause"], found["op"], found["side"]) == ("overwritten", "aten.exp.default", "candidate")


def test_a_view_of_the_storage_may_show_more_than_its_input() -> None:
    """``as_strided`` of equal tensors may differ without anybody's doing."""

    def run(part: int, made: int) -> list[Event]:
        shown = op("as_strided", [_assumed(20, 0)], [part], kind="view")
        reader = op("exp", [read(part, writers=(0,))], [made])
        return [op("mul", [10], [20]), shown, reader, loss(made)]

    assert _said(run(30, 40), run(31, 41))["cause"] != "overwritten"


def test_an_operand_that_came_from_nowhere_may_be_overwritten() -> None:
    """A value that one run alone has, in memory that both wrote alike: another slice, or a foreign write."""

    def run(part: int, made: int) -> list[Event]:
        return [op("mul", [10], [20]), op("exp", [read(part, writers=(0,))], [made]), loss(made)]

    found = _said(run(30, 40), run(31, 41))
    assert (found["cause"], found["one_of"]) == ("inputs", ["inputs", "overwritten"])
    assert "one_of" not in _said(run(30, 40), run(31, 41), "full", "full")


@pytest.mark.parametrize("looked", ["reference", "candidate"])
@pytest.mark.parametrize(("extra", "cause"), [("eps=2", "arguments"), ("eps=1", "overwritten")])
def test_one_run_looked_and_the_other_did_not(looked: str, extra: str, cause: str) -> None:
    """Memory that one run found overwritten may have been so in the other: a changed argument comes first."""

    def run(*, looks: bool, made: int, extra: str) -> list[Event]:
        operand = read(29, OVER, writers=(0,)) if looks else _assumed(20, 0)
        return [op("mul", [10], [20]), op("exp", [operand], [made], extra=extra), loss(made)]

    left = run(looks=looked == "reference", made=40, extra="eps=1")
    right = run(looks=looked == "candidate", made=41, extra=extra)
    found = _said(left, right, *(("full", "op") if looked == "reference" else ("op", "full")))
    assert found["cause"] == cause and found["one_of"][0] == cause and len(found["one_of"]) == 2


@pytest.mark.parametrize(("levels", "sentences"), [(("op", "op"), 1), (("full", "op"), 2), (("full", "full"), 0)])
def test_a_report_names_what_its_level_cannot_find(levels: tuple[str, str], sentences: int) -> None:
    """In a sentence of its notes, also where nothing differs; that the levels differ is another."""
    runs: list[MemoryTrace] = [trace([op("mul", [10], [20]), loss(20)], level=level) for level in levels]
    found = compare_traces(*runs)
    assert (found.verdict, len(found.notes)) == ("identical", sentences)
    assert any("Level op" in note for note in found.notes) == ("op" in levels)


def test_level_contract_says_that_it_names_no_operator() -> None:
    """The same for runs that recorded step ends alone."""
    found = compare_traces(trace([loss(20)], level="contract"), trace([loss(21)], level="contract"))
    assert any("Level contract" in note for note in found.notes)
