"""What differs within tolerance is told in words, wherever a verdict is shown."""

from __future__ import annotations

from typing import Any

from opguard_ci.report.allowances import allowance_sentences, not_judged, within_tolerance
from opguard_ci.report.check import reason, render_check
from opguard_ci.report.layout import plain
from opguard_ci.report.text import render


def document(**changes: Any) -> dict[str, Any]:
    """A verdict with one deviation."""
    largest = {"step": 2, "name": "loss", "allowed": "ulp(2)", "max_ulp": 1, "max_abs": 2.5e-8, "max_rel": 1e-7}
    return {"verdict": "equivalent", "tolerance": {"num_within": 1, "largest": {**largest, **changes}}}


def test_it_says_what_deviates_the_most():
    """With the amounts, and what is allowed."""
    said = (
        "within tolerance: 1 contract value differs, the most loss in step 2 by 1 ulp, 2.5e-08 absolute, 1e-07 relative"
    )
    assert within_tolerance(document()) == f"{said} where ulp(2) is allowed"
    assert reason(document()) == "within tolerance"
    assert " ".join(plain(render(document())).split()).startswith(f"equivalent {said}")


def test_several_values_are_counted():
    """The other way of saying it."""
    found = document()
    found["tolerance"]["num_within"] = 1200
    assert "1,200 contract values differ" in within_tolerance(found)


def test_there_is_nothing_to_say_without_a_deviation():
    """Nor about a run that diverged all the same."""
    assert within_tolerance({"verdict": "equivalent"}) == ""
    assert within_tolerance({"verdict": "equivalent", "tolerance": {"num_within": 0, "largest": None}}) == ""
    assert within_tolerance({**document(), "verdict": "diverged"}) == ""


def test_a_check_that_passes_prints_it_too():
    """With what was needed of it."""
    found = document()
    found["tolerance"]["candidate"] = {"loss": "ulp(2)"}
    assert allowance_sentences(found)[0].startswith("tolerance loss ulp(2): 1 contract value differs")
    found = {"verdict": "identical", "tolerance": {"candidate": {"loss": "ulp(2)"}, "largest": None}}
    assert allowance_sentences(found) == ["tolerance loss ulp(2): nothing differs within it"]
    result = {**found, "target": "t", "reference": {}, "results": []}
    assert "t: tolerance loss ulp(2)" in plain(render_check({"results": [result]}))
    assert allowance_sentences({"verdict": "identical"}) == []


def test_what_is_declared_unstable_is_told():
    """With its reason; what was not judged for it is in the headline."""
    left_out = [{"step": 0, "name": "aux", "pattern": "aux", "reason": "threads"}]
    found = {
        "verdict": "equivalent",
        "declared_unstable": {"candidate": {"aux": "threads"}, "not_judged": left_out, "num_not_judged": 1},
    }
    assert allowance_sentences(found) == ["declared unstable: aux (threads)"]
    assert not_judged(found) == "but for what is declared unstable: aux differs, not judged"
    assert plain(render(found)).startswith("equivalent but for what is declared unstable: aux differs, not judged")
    assert reason(found) == "declared unstable values left out"
    assert (
        not_judged({"verdict": "equivalent", "declared_unstable": {"candidate": {"aux": ""}, "num_not_judged": 0}})
        == ""
    )
