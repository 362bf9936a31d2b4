from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.report.junit import MAX_TEXT, Case, cases_of, junit_xml, readable

ANYTHING = st.text(alphabet=st.characters(codec=None, categories=None), max_size=30) | st.text(
    alphabet=[chr(code) for code in (*range(32), 0x7F, 0x85, 0xD800, 0xDFFF, 0xFDD0, 0xFFFE, 0xFFFF, 0x1FFFE)]
    + ["<", "&"],
    max_size=10,
)
OUTCOMES = ("passed", "failed", "error", "skipped")
TAGS = {"failed": "failure", "error": "error", "skipped": "skipped"}
cases = st.builds(
    Case, name=ANYTHING, outcome=st.sampled_from(OUTCOMES), message=ANYTHING, text=ANYTHING, kind=ANYTHING,
    classname=ANYTHING, file=st.none() | ANYTHING, line=st.none() | st.integers(1, 10**6),
)  # fmt: skip


def parsed(report: str) -> ET.Element:
    return ET.fromstring(report.encode("utf-8"))


@given(st.lists(cases, max_size=5), ANYTHING)
def test_any_text_comes_through(given_cases: list[Case], suite: str) -> None:
    """Whatever the texts hold, the XML parses, and says of each case what it was; names are unique."""
    root = parsed(junit_xml(given_cases, suite))
    found = root.findall(".//testcase")
    assert len(found) == len(given_cases)
    assert len({(case.get("classname"), case.get("name")) for case in found}) == len(found)
    for case, element in zip(given_cases, found, strict=True):
        assert [child.tag for child in element] == ([TAGS[case.outcome]] if case.outcome in TAGS else [])
        for child in element:
            assert child.get("message")
            assert (child.text or "") == readable(case.text)
            if case.message:
                assert child.get("message") == readable(case.message)
    suite_element = root.find("testsuite")
    assert suite_element is not None
    counted = [suite_element.get(name) for name in ("failures", "errors", "skipped")]
    assert counted == [
        str(sum(case.outcome == name for case in given_cases)) for name in ("failed", "error", "skipped")
    ]


@given(ANYTHING)
def test_what_xml_can_say_is_kept(text: str) -> None:
    """Other characters become U+FFFD, one for one."""
    shown = readable(text)
    assert len(shown) == len(text)
    assert all(new in (old, "\ufffd") for old, new in zip(text, shown, strict=True))
    assert readable("Größe\t\U0001f600\n") == "Größe\t\U0001f600\n"


def test_a_huge_text_keeps_both_ends() -> None:
    """What is left out is counted."""
    shown = readable("a" * MAX_TEXT + "middle" * 10**6 + "z" * MAX_TEXT)
    assert len(shown) < MAX_TEXT + 100
    assert shown.startswith("aaa") and shown.endswith("zzz")
    assert "characters left out" in shown


def result(verdict: str, **more: Any) -> dict[str, Any]:
    compared = {"reference": {"kind": "commit", "commit": "a" * 40, "cached": False}, "candidate": {}, "notes": ["why"]}
    first = None
    if verdict == "diverged":
        frames = [
            {"file": "/lib/torch/x.py", "line": 5, "function": "f", "source": "s"},
            {"file": "model.py", "line": 88, "function": "forward", "source": "y = f(x)"},
        ]
        first = {"step": 2, "phase": "forward", "op": "aten.mul.Tensor", "cause": "arguments", "stack": frames}
    return {"recipe": "r", "target": "train.py:f", "file": "train.py", "schema": 1, "verdict": verdict,
            "first_divergence": first, **compared, **more}  # fmt: skip


@pytest.mark.parametrize(
    ("given_result", "strict", "outcome", "line"),
    [
        (result("identical"), False, "passed", 1),
        (result("equivalent"), False, "passed", 1),
        (result("equivalent"), True, "failed", 1),
        (result("diverged"), False, "failed", 88),
        (result("environment"), False, "failed", 1),
        (result("no-reference", missing="skip"), False, "skipped", 1),
        (result("no-reference", missing="fail"), False, "failed", 1),
        (result("untestable", error={"side": "candidate", "slug": "s", "message": "m"}), False, "failed", 1),
        (result("untestable", error={"side": "reference", "slug": "s", "message": "m"}), False, "error", 1),
        (result("error", error={"slug": "internal", "message": "m"}), False, "error", 1),
    ],
)
def test_results_become_cases(given_result: dict[str, Any], strict: bool, outcome: str, line: int) -> None:
    """As in the table of exit codes; a failure stands on the user's line and carries the text of the terminal."""
    (case,) = cases_of({"results": [given_result]}, strict=strict)
    assert (case.outcome, case.line) == (outcome, line)
    assert case.file == ("model.py" if line == 88 else "train.py")
    assert case.message.startswith(given_result["verdict"])
    assert bool(case.text) == (outcome != "passed")
