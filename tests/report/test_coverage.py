"""The line about what was seen stands in every report, also where nothing failed."""

from __future__ import annotations

from typing import Any

from opguard_ci.report.check import render_check
from opguard_ci.report.coverage import coverage_line, together
from opguard_ci.report.github import summary
from opguard_ci.report.junit import cases_of, junit_xml
from opguard_ci.report.layout import plain

SEEN = {"operators": 1200, "hashed": 1199, "unhashed": ["aten.x: no memory"], "unseen": []}
HIDDEN = {"operators": 30, "hashed": 30, "unhashed": ["aten.x: no memory"], "unseen": ["CUDAGraph.replay"]}


def _document(*coverages: dict[str, Any]) -> dict[str, Any]:
    results = [
        {"target": f"r{n}.py", "verdict": "identical", "reference": {}, "coverage": coverage}
        for n, coverage in enumerate(coverages)
    ]
    return {"verdict": "identical", "results": results}


def test_a_line_names_what_was_not_seen() -> None:
    """Numbers, then names; of several runs together each name once."""
    assert coverage_line(SEEN) == "1,199 of 1,200 operators fingerprinted; without fingerprint: aten.x: no memory"
    both = coverage_line(together([SEEN, HIDDEN]))
    assert both.startswith("1,229 of 1,230 operators") and both.endswith("ran unseen: CUDAGraph.replay")
    assert both.count("aten.x") == 1


def test_every_report_of_a_check_has_it() -> None:
    """Terminal, GitHub and JUnit, where all passed; nothing where nothing ran."""
    document = _document(SEEN, HIDDEN)
    assert "1,229 of 1,230 operators fingerprinted" in plain(render_check(document)).replace("\n", " ")
    assert "1,229 of 1,230 operators fingerprinted" in summary(document)
    assert junit_xml(cases_of(document)).count("operators fingerprinted") == 2
    empty = _document({})
    assert "coverage" not in plain(render_check(empty)) + summary(empty) + junit_xml(cases_of(empty))
