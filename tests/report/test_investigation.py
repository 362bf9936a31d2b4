from __future__ import annotations

import re
from typing import Any

import pytest

from opguard_ci.report.investigation import investigation_report
from opguard_ci.report.words import CAUSES


def side(command: str, **more: Any) -> dict[str, Any]:
    plain = {"python": "/usr/bin/python3", "own_python": True, "variables": {}, "replay": {"verdict": "identical"}}
    return {"command": command, **plain, "environment": {"key": "k" * 16, "document": {"torch": "2.13"}}, **more}


def investigated(cause: str = "kernel", **more: Any) -> dict[str, Any]:
    frame = {"file": "net.py", "line": 3, "function": "f", "source": "x @ y"}
    first = {"step": 1, "phase": "backward", "op": "aten.mm.default", "module": "down", "cause": cause, "detail": "why"}
    return {
        "schema": 1,
        "verdict": "diverged",
        "first_divergence": {**first, "stack": [frame]},
        "notes": [],
        "contract": [{"step": 1, "name": "loss", "equal": False}],
        "a": side("a.py"),
        "b": side("b.py"),
        **more,
    }


def part(verdict: str, differs: list[str]) -> dict[str, Any]:
    return {"verdict": verdict, "first_divergence": None, "contract": [], "notes": [], "differs": differs}


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_every_cause_has_a_mechanism_and_a_way_to_validate_it(cause: str) -> None:
    """In three sections, with the evidence and the command to do it again."""
    report = investigation_report(investigated(cause))
    headings = re.findall(r"^## (.*)$", report, re.MULTILINE)
    assert headings == ["What was observed", "The mechanism it suggests", "How to validate it"]
    assert CAUSES[cause] in report
    assert "mechanism is right" in report or cause == "kernel"
    assert "opguard investigate --a a.py --b b.py" in report
    assert "net.py:3" in report


def test_a_variable_that_differs_is_taken_away_by_a_command() -> None:
    """One command for each, with all others left as they are; a variable that only B has is left out."""
    a, b = side("t.py", variables={"X": "1"}), side("t.py", variables={"X": "2", "Y": "3"})
    parts = {"environment": part("diverged", ["intra-op threads: 1 -> 2"]), "code": part("identical", [])}
    report = investigation_report(investigated(a=a, b=b, attribution=parts))
    assert "`opguard investigate --a t.py --b t.py --env-a X=1 --env-b X=1 --env-b Y=3`" in report
    assert "`opguard investigate --a t.py --b t.py --env-a X=1 --env-b X=2`" in report
    assert "the environment makes the difference" in report
    assert "- `intra-op threads: 1 -> 2`" in report


def test_one_that_does_not_repeat_itself_is_made_to_first() -> None:
    """The command pins it, with its own variables and arguments."""
    b = side("b.py --lr 1", variables={"X": "1"}, replay={"verdict": "unstable"})
    report = investigation_report(investigated("random", verdict="unstable", b=b))
    assert "`X=1 opguard replay b.py --profile strict -- --lr 1`" in report
    assert "does not repeat itself" in report


def test_agreement_suggests_no_mechanism() -> None:
    """Only what was observed."""
    report = investigation_report(investigated(verdict="identical", first_divergence=None, contract=[]))
    assert report.startswith("# Investigation: identical\n")
    assert "mechanism" not in report


def test_text_of_the_runs_is_no_markup() -> None:
    """Neither a table nor a code block can be left by a command, a name or a source line."""
    evil = "`|</td>\n# heading ``````"
    document = investigated(a=side(evil), notes=[evil])
    document["first_divergence"]["stack"][0]["source"] = evil
    document["first_divergence"]["detail"] = evil
    report = investigation_report(document)
    inside = False
    fence = ""
    for line in report.splitlines():
        if line and set(line) == {"`"}:
            assert not inside or line == fence
            inside, fence = not inside, line
        elif not inside:
            assert "</td>" not in re.sub(r"`[^`]*`", "", line)
            assert not line.startswith("# heading")
    assert not inside
