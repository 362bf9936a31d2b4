"""Two traces in, one verdict out: classes, notes, what is opened, and the object that is shown."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings

from opguard_ci.compare import compare_traces
from opguard_ci.errors import IncomparableError
from opguard_ci.trace.model import OVER, StepTable
from tests.strategies import traces

from .build import contract, copy, loss, op, read, trace
from .running import MemoryTrace

GOOD = [op("f", [10], [20], extra="a=1"), op("g", [20], [30]), loss(30)]
BAD = [op("f", [10], [21], extra="a=2"), op("g", [21], [31]), loss(31)]


@given(traces())
def test_any_run_is_identical_with_itself(tables: list[StepTable]) -> None:
    """Whatever its events look like."""
    assert compare_traces(MemoryTrace(tables), MemoryTrace(tables)).verdict == "identical"


@settings(max_examples=150, deadline=None)
@given(traces(), traces())
def test_any_two_runs_are_judged(left: list[StepTable], right: list[StepTable]) -> None:
    """Strange runs get a verdict too: the same class from both sides, in plain JSON, and a place if they diverged."""
    one, two = (compare_traces(*map(MemoryTrace, sides)) for sides in ((left, right), (right, left)))
    assert one.verdict == two.verdict
    for found in (one, two):
        shown = found.to_json()
        assert json.loads(json.dumps(shown)) == shown
        assert (found.first_divergence is not None) == (found.verdict == "diverged")


def test_identical() -> None:
    """Equal digests: nothing differs, nothing is listed."""
    found = compare_traces(trace(GOOD), trace(GOOD))
    assert (found.verdict, found.first_divergence, found.contract, found.transient) == ("identical", None, [], [])
    assert found.passed


def test_equivalent() -> None:
    """Other operators, the same contract."""
    found = compare_traces(trace(GOOD), trace([op("k", [10], [40]), *GOOD]))
    assert (found.verdict, found.passed) == ("equivalent", True)
    assert [item["event"] for item in found.transient] == [0]
    assert found.structure == {"inserted": 1, "removed": 0, "moved": 0}


def test_operators_of_a_block_are_counted() -> None:
    """What replaces an operator is listed in short, however often it repeats."""
    rows = [op("mm", [10], [21 + n]) for n in range(8)]
    bad = [*rows, op("cat", range(21, 29), [31]), loss(31)]
    first = compare_traces(trace([op("addmm", [10], [30]), loss(30)]), trace(bad)).first_divergence
    assert first is not None
    assert (first["cause"], first["detail"]) == ("code", "addmm replaced by mm (8 times), cat")


def test_diverged() -> None:
    """The first step with an unequal contract value decides; values that differ are named."""
    found = compare_traces(trace(GOOD, GOOD, GOOD), trace(GOOD, BAD, BAD))
    assert (found.verdict, found.passed) == ("diverged", False)
    assert found.contract == [{"step": 1, "name": "loss", "equal": False}]
    first = found.first_divergence
    assert first is not None
    assert (first["step"], first["op"], first["cause"], first["detail"]) == (
        1,
        "aten.f.default",
        "arguments",
        "a 1 -> 2",
    )


def test_environment() -> None:
    """Values and keys differ: no operator is blamed."""
    found = compare_traces(trace(GOOD), trace(BAD, key="elsewhere"))
    assert (found.verdict, found.first_divergence) == ("environment", None)
    assert [n for n in found.notes if n.startswith("Environment: ")] == ["Environment: torch: here -> elsewhere"]


def test_other_keys_with_equal_values() -> None:
    """Nothing differs, so that there is nothing to explain."""
    assert compare_traces(trace(GOOD), trace(GOOD, key="elsewhere")).verdict == "identical"


@pytest.mark.parametrize(
    "manifest",
    [
        {"complete": False},
        {"complete": False, "outcome": {"message": "it was killed"}},
        {"coverage": {"operators": 3, "hashed": 3, "unhashed": [], "unseen": ["aten.mm"]}},
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_agreement_of_half_seen_runs_proves_nothing(manifest: dict[str, Any], side: int) -> None:
    """An incomplete run, or unseen operators: untestable, with the reason in the notes."""
    runs = [trace(GOOD), trace(GOOD)]
    runs[side].manifest.update(manifest)
    found = compare_traces(*runs)
    assert found.verdict == "untestable"
    assert len(found.notes) == 1


def test_unseen_operators_may_be_allowed() -> None:
    """``--allow-unseen`` is kept in the manifest."""
    unseen = {"coverage": {"operators": 3, "hashed": 3, "unhashed": [], "unseen": ["aten.mm"]}, "allow_unseen": True}
    assert compare_traces(trace(GOOD), trace(GOOD, **unseen)).verdict == "identical"


def test_a_divergence_of_an_incomplete_run_is_one() -> None:
    """What was seen to differ differs."""
    assert compare_traces(trace(GOOD), trace(BAD, complete=False)).verdict == "diverged"


@pytest.mark.parametrize("steps", [[GOOD], [GOOD, GOOD[:1]]], ids=["between steps", "within a step"])
def test_what_a_run_did_not_come_to_is_no_divergence(steps: list[Any]) -> None:
    """A run that was cut short lacks values: from either side, that says nothing. One that ended lacks them itself."""
    whole, cut = trace(GOOD, GOOD, GOOD), trace(*steps, complete=False)
    assert compare_traces(whole, cut).verdict == compare_traces(cut, whole).verdict == "untestable"
    assert compare_traces(whole, trace(*steps)).verdict == "diverged"


@pytest.mark.parametrize("name", ["schema", "scheme", "ranks"])
def test_what_cannot_be_compared(name: str) -> None:
    """Another schema, scheme or number of ranks is an error that names the field."""
    with pytest.raises(IncomparableError, match=name) as caught:
        compare_traces(trace(GOOD), trace(GOOD, **{name: 99}))
    assert caught.value.slug == f"other-{name}"


def test_other_targets_are_no_obstacle() -> None:
    """Compared, and said in the notes."""
    found = compare_traces(trace(GOOD), trace(GOOD, target="another"))
    assert found.verdict == "identical"
    assert any("target" in note for note in found.notes)


def test_what_both_sides_note_is_said_once() -> None:
    """What one of them notes is said of that side."""
    sides = [trace([loss(1)], notes=["of both", own]) for own in ("of one", "of the other")]
    notes = ["of both", "reference: of one", "candidate: of the other"]
    assert compare_traces(*sides).notes == notes


def test_contract_level_names_value_and_last_writer() -> None:
    """Without operators, the contract value that differs stands for them."""
    events = [[loss(30)], [loss(31)]]
    found = compare_traces(*(trace(side, level="contract") for side in events))
    assert found.verdict == "diverged"
    assert found.first_divergence is not None
    assert found.transient == []


def test_a_missing_step_is_a_difference() -> None:
    """One run ended earlier: its contract values of the later step are missing."""
    found = compare_traces(trace(GOOD, GOOD), trace(GOOD))
    assert found.verdict == "diverged"
    assert found.contract[0]["step"] == 1


def test_the_object_is_plain_json() -> None:
    """Every key of the contract, and nothing that JSON lacks."""
    shown = compare_traces(trace(GOOD), trace(BAD)).to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert set(shown) == {
        "schema", "verdict", "reference", "candidate", "first_divergence", "contract", "transient", "findings",
        "structure", "coverage", "notes",
    }  # fmt: skip
    assert {
        "step", "rank", "phase", "op", "module", "side", "cause", "detail", "first_seen_step", "before", "after",
        "stack", "tensors",
    } <= set(shown["first_divergence"])  # fmt: skip


def test_evidence_of_arguments_shows_equal_inputs() -> None:
    """What a reader has to believe: same inputs, other arguments, other output."""
    first = compare_traces(trace(GOOD), trace(BAD)).first_divergence
    assert first is not None
    evidence = first["evidence"]
    assert all(row["equal"] and row["reference"] == row["candidate"] for row in evidence["inputs"])
    assert [row["name"] for row in evidence["arguments"] if not row["equal"]] == ["a"]
    assert [row["equal"] for row in evidence["outputs"]] == [False]


def test_a_stale_operand_says_where_the_other_run_has_it() -> None:
    """A batch in another order: the value is the reference's of another step."""
    steps = [[op("f", [value], [value + 10]), loss(value + 10)] for value in (10, 11)]
    first = compare_traces(trace(*steps), trace(steps[1], steps[0])).first_divergence
    assert first is not None
    assert first["detail"].endswith("; the other run has it in step 1")


def test_passing_departures_are_counted_beyond_fifty() -> None:
    """Fifty are listed, the rest is a number in the notes."""
    many = [op(f"k{n}", [10], [1000 + n]) for n in range(60)]
    found = compare_traces(trace(GOOD), trace([*many, *GOOD]))
    assert len(found.transient) == 50
    assert any(note.startswith("10 more operators") for note in found.notes)


def test_findings_of_the_candidate_are_told_with_the_verdict() -> None:
    """Overwritten memory is a finding, whatever the verdict."""
    run = [op("f", [10], [20]), op("g", [read(21, OVER, writers=(0,))], [31]), loss(31)]
    found = compare_traces(trace(run), trace(run))
    assert (found.verdict, [item["cause"] for item in found.findings]) == ("identical", ["overwritten"])


def test_a_stale_copy_is_told_at_the_copy() -> None:
    """A buffer holds a value that both runs know, from another copy than in the reference."""
    both = [op("f", [10], [20]), op("k", [10], [21])]
    left = [*both, copy(20, 0), contract("buffer", "b", 20, writers=(2,))]
    right = [*both, copy(21, 0), contract("buffer", "b", 21, writers=(2,))]
    first = compare_traces(trace(left), trace(right)).first_divergence
    assert first is not None
    assert (first["cause"], first["event"]) == ("inputs", 2)


def _long(shift: int, num_steps: int = 20, num_operators: int = 2000) -> MemoryTrace:
    """A run in which each operator reads what the one before wrote, and every value hangs on ``shift``."""
    steps = []
    for step in range(num_steps):
        value, events = 10, []
        for number in range(num_operators):
            following = 1000 + (step * num_operators + number) * 2 + shift
            events.append(op(f"f{number % 40}", [value], [following], module=f"m{number % 7}"))
            value = following
        steps.append([*events, loss(value)])
    return trace(*steps)


def test_a_long_run_that_differs_everywhere_takes_seconds() -> None:
    """20 steps of 2,000 operators, none alike: nothing in the comparison is quadratic."""
    runs = _long(0), _long(1)
    start = time.process_time()
    found = compare_traces(*runs)
    assert time.process_time() - start < 30  # about 4 s on an idle machine
    assert found.first_divergence is not None
    assert (found.first_divergence["cause"], found.first_divergence["event"]) == ("kernel", 0)


def test_equal_digests_decide_without_events() -> None:
    """40,000 equal operators are not even looked at."""
    runs = _long(0), _long(0)
    start = time.process_time()
    assert compare_traces(*runs).verdict == "identical"
    assert time.process_time() - start < 1  # about 0.02 s on an idle machine


def test_replaced_operators_of_one_name_and_shape_show_their_arguments() -> None:
    """An operator on something else with other arguments is told apart by these."""
    both = [op("r", [5], [10]), op("s", [5], [11])]
    left = trace([*both, op("f", [10], [20], extra="k=1"), loss(20)])
    right = trace([*both, op("f", [11], [21], extra="k=2"), loss(21)])
    found = compare_traces(left, right).first_divergence
    assert found is not None
    assert (found["cause"], found["detail"]) == ("code", "f(t0=%0, k=1) replaced by f(t0=%0, k=2)")
