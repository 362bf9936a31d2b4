"""What a report draws of two runs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from opguard_ci.compare import compare_traces
from opguard_ci.compare.picture import operators, picture, strips
from opguard_ci.trace.model import Event, StepTable
from tests.strategies import traces

from .build import contract, loss, op, trace
from .running import MemoryTrace


def _drawn(reference: list[Event], candidate: list[Event]) -> dict[str, Any]:
    runs = trace(reference), trace(candidate)
    found = operators(*runs, compare_traces(*runs).first_divergence or {"event": 0, "side": "candidate"})
    assert found is not None
    return found


def _states(found: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(state, event of the reference, event of the candidate) of each row."""
    return [(row["state"], *(row[s] and row[s]["event"] for s in ("reference", "candidate"))) for row in found["rows"]]


def test_other_arguments_stand_side_by_side() -> None:
    """Of one operator; what follows has other values in."""
    found = _drawn(
        [op("k", [10], [15]), op("f", [15], [20], extra="eps=1"), op("g", [20], [30]), loss(30)],
        [op("k", [10], [15]), op("f", [15], [21], extra="eps=2"), op("g", [21], [31]), loss(31)],
    )
    assert _states(found) == [("same", 0, 0), ("changed", 1, 1), ("values", 2, 2)]
    assert [row["here"] for row in found["rows"]] == [False, True, False]
    assert found["counts"] == {"same": 1, "changed": 1, "values": 1}
    assert found["rows"][1]["candidate"]["args"] == "t0=%0, eps=2"


def test_inserted_removed_moved_renamed_and_kernels() -> None:
    """Each in its row; what moved names where it stands on the other side."""
    found = _drawn(
        [op("a", [10], [20]), op("b", [11], [21]), op("c", [12], [22]), op("add", [13], [23]), op("gone", [14], [24])],
        [op("b", [11], [21]), op("c", [12], [22]), op("a", [10], [20]), op("new", [14], [25]), op("add_", [13], [23])],
    )
    assert _states(found) == [
        ("moved", 0, None), ("same", 1, 0), ("same", 2, 1), ("moved", None, 2), ("candidate", None, 3),
        ("renamed", 3, 4), ("reference", 4, None),
    ]  # fmt: skip
    assert (found["rows"][0]["reference"]["moved"], found["rows"][3]["candidate"]["moved"]) == (2, 0)
    assert _states(_drawn([op("f", [10], [20]), loss(20)], [op("f", [10], [21]), loss(21)])) == [("result", 0, 0)]


def test_what_is_far_away_is_counted() -> None:
    """A window around the divergence, and the whole step in few cells."""
    many = [op(f"f{n}", [100 + n], [1000 + n]) for n in range(500)]
    changed = [*many[:250], op("f250", [350], [7]), *many[251:], loss(7)]
    found = _drawn([*many, loss(1250)], changed)
    assert (found["above"], len(found["rows"]), found["below"]) == (236, 41, 223)
    assert len(found["glance"]) == 180
    assert sum(cell["here"] for cell in found["glance"]) == 1
    assert next(cell["state"] for cell in found["glance"] if cell["here"]) == "result"


def test_strips() -> None:
    """What the digests of each step say, section by section; steps that one run lacks."""
    good = [op("f", [10], [20]), loss(20), contract("parameter", "w", 20)]
    bad = [op("f", [10], [21]), loss(21), contract("parameter", "w", 20)]
    found = strips(trace(good, good, good).manifest, trace(good, bad).manifest)
    assert found["steps"] == [0, 1, 2]
    cells = {row["name"]: row["cells"] for row in found["strips"]}
    assert cells["loss"] == cells["operators, forward"] == ["same", "different", "reference"]
    assert cells["parameters"] == ["same", "same", "reference"]
    assert [row["name"] for row in found["strips"] if row["hard"]] == ["loss", "parameters"]


@settings(max_examples=60, deadline=None)
@given(traces(), traces())
def test_every_operator_has_one_row(left: list[StepTable], right: list[StepTable]) -> None:
    """Whatever the runs look like, each side's operators stand in order, each once."""
    runs = MemoryTrace(left), MemoryTrace(right)
    divergence = compare_traces(*runs).first_divergence
    found = picture(*runs, divergence)["operators"]
    if found is not None:
        for side in ("reference", "candidate"):
            events = [row[side]["event"] for row in found["rows"] if row[side]]
            assert events == sorted(set(events))
        assert sum(found["counts"].values()) == len(found["rows"]) + found["above"] + found["below"]
