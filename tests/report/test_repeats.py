"""What was tried against an unstable target, and a suspicion against the machine, as text."""

from __future__ import annotations

from typing import Any

from opguard_ci.report.layout import plain
from opguard_ci.report.repeats import diagnosis_lines, hardware_headline, hardware_lines
from opguard_ci.report.text import render

HARDWARE: dict[str, Any] = {
    "run": 4, "runs": 5, "op": "aten.add_.Tensor", "step": 2, "module": None, "tensor": "other", "dtype": "float32",
    "shape": [3, 8], "elements": [[1, 4]], "bits": [13], "detail": "",
}  # fmt: skip


def tried(outcome: str, **changes: Any) -> dict[str, Any]:
    return {"tried": "one thread", "outcome": outcome, "runs": 4, "luck": None, "detail": "", **changes}


def test_each_outcome_has_its_words():
    """What helps is summed up."""
    text = plain(diagnosis_lines([tried("cured", luck=0.04)]))
    assert "one thread  cures it: 4 runs agree (by luck alone 1 time in 25)" in text
    assert "What helps: one thread." in text
    assert "less than 1 time in 1000" in plain(diagnosis_lines([tried("cured", luck=1e-9)]))
    text = plain(diagnosis_lines([tried("unstable", detail="aten.mm kernel"), tried("untestable", detail="raised")]))
    assert "does not: run 4 differs (aten.mm kernel)" in text
    assert "cannot be tried: raised" in text
    assert "What helps: nothing of this." in text
    assert "not tried: pinned" in plain(diagnosis_lines([tried("pinned", detail="pinned")]))
    assert diagnosis_lines([]) == []


def test_a_suspicion_names_element_and_bits():
    """In the headline, too."""
    text = plain(hardware_lines(HARDWARE))
    assert "4 of 5; all others agree" in text
    assert "[1, 4] of float32[3,8]" in text
    assert "13 flipped" in text
    document = {"verdict": "unstable", "hardware": HARDWARE}
    assert hardware_headline(document) == "suspected hardware: one bit of other in run 4 alone"
    assert plain(render(document)).startswith("unstable: suspected hardware")


def test_a_run_that_differs_alone_without_flips_is_no_suspicion():
    """It is told all the same."""
    alone = {"run": 4, "runs": 5, "detail": "no flip gives what was seen"}
    assert hardware_headline({"hardware": alone}) == ""
    assert "One run differs alone" in plain(hardware_lines(alone))
    assert hardware_lines(None) == []
