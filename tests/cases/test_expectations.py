"""A wrong verdict about a case is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cases.expectations import Case, base_name, load_case, problems

INPUTS = [{"name": "input", "reference": "aa", "candidate": "aa", "equal": True, "spec": "float32[2]"}]
ONE_UNEQUAL = [{**INPUTS[0], "candidate": "bb", "equal": False}]


def case(expected: str, **constants: Any) -> Case:
    known = {"EXPECT_VERDICT": expected, "EXPECT_OP": "aten::mul.Tensor", "EXPECT_STEP": 1, **constants}
    return Case("some", Path("some.py"), known, frozenset({"good", "bad"}))


def diverged(cause: str, **fields: Any) -> dict[str, Any]:
    first = {"cause": cause, "op": "aten.mul.Scalar", "step": 1, "side": "candidate", "evidence": {"inputs": INPUTS}}
    return {"verdict": "diverged", "first_divergence": first | fields, "transient": []}


EQUAL = {"verdict": "equivalent", "first_divergence": None, "transient": []}
PASSING = {**EQUAL, "transient": [{"op": "aten.mul.Tensor", "step": 1}]}
FOUND = [{"cause": "overwritten", "op": "aten.mul.Tensor", "step": 1}]


@pytest.mark.parametrize(
    ("expected", "verdict", "findings"),
    [
        (case("none"), EQUAL, []),
        (case("transient"), PASSING, []),
        (case("args"), diverged("arguments"), []),
        (case("args"), diverged("arguments", op="aten.neg.default", computes="aten.mul.Tensor"), []),
        (case("args", EXPECT_STEP_ANY=(1, 2)), diverged("arguments", step=2), []),
        (case("ops", EXPECT_OP_GOOD="aten::add.Tensor"), diverged("missing", op="aten.add.Tensor"), []),
        (case("ops", ACCEPT_OPS=("aten::random_.default",)), diverged("random", op="aten.random_.default"), []),
        (case("inputs", EXPECT_ORIGIN_OP="aten::empty.memory_format"), diverged("uninitialised"), []),
        (case("outside-write"), diverged("overwritten"), FOUND),
        (case("observer"), {"verdict": "untestable"}, []),
    ],
)
def test_right_verdicts_are_right(expected: Case, verdict: dict[str, Any], findings: list[dict[str, Any]]):
    """What the table of the cases allows has no problems."""
    assert problems(expected, verdict, findings) == []


@pytest.mark.parametrize(
    ("expected", "verdict", "findings", "said"),
    [
        (case("none"), diverged("code"), [], "verdict diverged"),
        (case("transient"), EQUAL, [], "transient does not list"),
        (case("transient"), diverged("kernel"), [], "verdict diverged"),
        (case("args"), EQUAL, [], "verdict equivalent"),
        (case("args"), diverged("code"), [], "cause code"),
        (case("args"), diverged("arguments", op="aten.add.Tensor"), [], "op aten.add"),
        (case("args"), diverged("arguments", step=0), [], "step 0"),
        (case("args"), diverged("arguments", evidence={}), [], "without the input fingerprints"),
        (case("values"), diverged("kernel", evidence={"inputs": ONE_UNEQUAL}), [], "not shown equal"),
        (case("ops"), diverged("random"), [], "cause random"),
        (case("inputs", EXPECT_ORIGIN_OP="aten::empty.memory_format"), diverged("data"), [], "cause data"),
        (case("outside-write"), diverged("overwritten"), [], "no such finding"),
    ],
)
def test_wrong_verdicts_are_wrong(expected: Case, verdict: dict[str, Any], findings: list[dict[str, Any]], said: str):
    """Each kind of mistake is named."""
    wrong = problems(expected, verdict, findings)
    assert wrong
    assert said in wrong[0]


def test_swapped_sides_point_at_the_reference():
    """What happens in one run only is found on the side of that run."""
    expected = case("outside-write")
    assert problems(expected, diverged("overwritten", side="reference"), FOUND, swapped=True) == []
    assert problems(expected, diverged("overwritten"), FOUND, swapped=True) == ["side candidate, expected reference"]


def test_constants_are_read_without_running_the_program(tmp_path: Path):
    """Constants may be tuples and negative numbers; the program is not imported."""
    path = tmp_path / "x.py"
    path.write_text("EXPECT_STEP = -1\nEXPECT_STEP_ANY = (0, 1)\nraise SystemExit\ndef run(): ...\n")
    loaded = load_case(path)
    assert (loaded.steps, loaded.is_pair, loaded.attempts) == ((0, 1), False, 1)
    assert base_name("aten::mul.Tensor") == base_name("aten.mul.Scalar") == "aten.mul"
