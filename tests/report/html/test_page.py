"""The page of a verdict: everything from the run is escaped, nothing is loaded, the size is bounded."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from opguard_ci.compare import compare_traces
from opguard_ci.compare.picture import picture
from opguard_ci.evidence.difference import density
from opguard_ci.report.html import bisect_page, check_page, compare_page
from opguard_ci.trace.model import Event, StepTable
from tests.compare.build import contract, copy, loss, op, trace
from tests.compare.running import MemoryTrace
from tests.report.html.reading import Page
from tests.strategies import traces

HOSTILE = "</script></style><img src=x onerror=alert(1)>\x1b]0;x\x07\0\udce9\u202e'\"&"

ATTRIBUTES = frozenset(
    ["class", "title", "style", "lang", "charset", "content", "http-equiv", "name", "role", "aria-label", "viewbox",
     "preserveaspectratio", "x", "y", "width", "height", "d", "colspan", "scope", "href", "id"]
)  # fmt: skip

TENSOR = {
    "name": "output 0", "role": "output", "dtype": "float32", "shape": [4, 6], "different": 5, "elements": 24,
    "max_ulp": 3, "median_ulp": 1.5, "max_abs": 2.4e-07, "max_rel": 1e-06, "nonfinite": {"nan": [0, 2], "inf": [0, 0]},
    "region": {"box": [[0, 4], [1, 3]], "rows": 4, "of_rows": 4},
    "map": {"rows": 4, "columns": 6, "cells": [[0, 1, 1, 0, 0, 0]] * 4},
    "flips": {"bits": {"0": 5, "31": 1}, "fields": {"sign": 1, "exponent": 0, "mantissa": 5}, "single_bit": 4},
    "first": [{"index": [0, 1], "reference": "0.5", "candidate": "0.25", "bits": ["0x3f000000", "0x3e800000"]}],
}  # fmt: skip


def _compared(reference: MemoryTrace, candidate: MemoryTrace) -> tuple[dict[str, Any], dict[str, Any]]:
    document = {**compare_traces(reference, candidate).to_json(), "target": "train.py:tiny"}
    return document, picture(reference, candidate, document["first_divergence"])


def _runs(name: str = "f", **options: Any) -> tuple[MemoryTrace, MemoryTrace]:
    def changed(eps: int, first: int, second: int) -> list[Event]:
        return [
            op(name, [15], [first], extra=f"eps={eps}", **options),
            op("g", [first], [second]),
            copy(second, 4),
            loss(second),
        ]

    good = [op("k", [10], [15]), *changed(1, 20, 30)]
    return trace(good, good), trace(good, [op("k", [10], [15]), op("m", [10], [16]), *changed(2, 21, 31)])


def test_a_divergence_with_all_that_belongs_to_it() -> None:
    """Verdict, place, evidence, tensors with their map, strips, and both lists of operators."""
    document, drawn = _compared(*_runs(module="blocks.0.norm"))
    document["first_divergence"]["tensors"] = [TENSOR]
    page = Page(compare_page(document, drawn))
    for said in ("diverged", "blocks.0.norm", "eps 1 -> 2", "step 1, forward", "5of 24", "max ULP", "nan0 → 2", "0.25"):
        assert said in page.text
    assert {"s0", "s8", "mantissa", "sign", "cell", "different", "here", "inserted"} <= set(page.classes)


def test_a_map_shows_shares() -> None:
    """Of a tensor all of whose elements differ every cell has one shade, though some stand for more rows."""
    found = density(np.arange(18 * 8), (3, 6, 8))
    assert {count for row in found["cells"] for count in row} == {1, 2}
    document, _ = _compared(*_runs())
    document["first_divergence"]["tensors"] = [{**TENSOR, "map": found}]
    shades = [name for name in Page(compare_page(document, None)).classes if name[0] == "s" and name[1:].isdigit()]
    assert set(shades) == {"s8"}


def _hostile(value: Any) -> Any:
    """The same object with a hostile text in place of each text that no rule looks at."""
    if isinstance(value, dict):
        return {key: value[key] if key in ("verdict", "state", "kind") else _hostile(value[key]) for key in value}
    if isinstance(value, list):
        return [_hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) and value not in ("same", "different", "reference", "candidate") else value


BISECTION: dict[str, Any] = {
    "schema": 1, "verdict": "found", "target": "train.py:tiny", "good": "a" * 40, "bad": "b" * 40,
    "first_bad": "c" * 40, "candidates": ["c" * 40], "runs": 7, "cached": 1, "subjects": {"c" * 40: "Tidy"},
    "transitions": [{"commit": "c" * 40, "from": "A", "to": "B", "declared": True}] * 2,
    "skipped": [{"commit": "d" * 40, "reason": "does not import"}],
    "hunks": [{"file": "model.py", "lines": [51, 52], "kind": "hunk", "old_file": "model.py", "old_lines": [51, 51],
               "frame": True, "proven": False, "text": ["-    eps=1e-5", "+    eps=1e-8", " x"], "more": 3}],
    "patch": "x.patch", "notes": ["a note"],
}  # fmt: skip


def test_what_a_run_says_is_text() -> None:
    """Names, source lines, notes, commits and hunks that want to be markup, break out of it, or cannot be encoded."""
    document, drawn = _compared(*_runs())
    document["first_divergence"]["tensors"] = [TENSOR]
    part = {"verdict": "diverged", "first_divergence": document["first_divergence"], "notes": ["n"], "differs": ["d"]}
    document["attribution"] = {"environment": part, "code": {"verdict": "identical"}}
    document["findings"] = document["unstable"] = document["transient"] = [document["first_divergence"]]
    error = {"verdict": "untestable", "error": {"slug": "s", "message": "m", "traceback": "t\nu"}, "target": "t"}
    found = {**BISECTION, **{key: document[key] for key in ("first_divergence", "reference", "candidate")},
             "divergence": document["first_divergence"]}  # fmt: skip
    results = [{**document, "bisect": found, "command": "opguard bisect"}, error]
    check = _hostile({"verdict": "diverged", "results": results})
    pages = [
        compare_page(_hostile(document), _hostile(drawn)),
        bisect_page(_hostile(found), _hostile(drawn)),
        check_page(check, [(_hostile(drawn), _hostile(drawn)), (None, None)], strict=False),
    ]
    for text in pages:
        shown = text.encode()  # no lone surrogates
        assert not {*range(32)} - {10} & {*shown}
        page = Page(text)
        assert "<img src=x onerror=alert(1)>" in page.text
        assert {name for name, _ in page.attributes} <= ATTRIBUTES
        assert all(value and value.startswith("#result-") for name, value in page.attributes if name == "href")
        assert "url(" not in text
        assert "@import" not in text


def test_the_size_is_bounded() -> None:
    """Of everything so much is shown that a page can be opened, and the rest is counted."""
    document, _ = _compared(*_runs())
    frame = {"file": "f" * 9999, "line": 1, "function": "g", "source": "s" * 9999}
    tensor = {**TENSOR, "name": "n" * 9999, "map": {"rows": 16, "columns": 48, "cells": [[0, 1] * 24] * 16}}
    inputs = [{"name": "x", "reference": "1" * 999, "candidate": None}] * 5000
    one = {**document["first_divergence"], "stack": [frame] * 999, "tensors": [tensor] * 500, "before": ["op"] * 5000,
           "evidence": {"inputs": inputs}}  # fmt: skip
    document.update(
        first_divergence=one, transient=[one] * 5000, findings=[one] * 5000, notes=["n" * 9999] * 5000,
        contract=[{"step": 0, "name": f"p{n}" * 99, "equal": False} for n in range(5000)],
    )  # fmt: skip
    steps = list(range(5000))
    drawn = {"steps": steps, "strips": [{"name": "loss", "hard": True, "cells": ["same"] * 4999 + ["different"]}]}
    text = compare_page(document, {**drawn, "operators": None})
    assert len(text) < 1_500_000
    assert "and 488 more tensors" in text
    page = Page(text)
    assert page.classes.count("different") == 2  # the last of 64 squares, and the legend
    many = {"verdict": "diverged", "results": [document] * 1000}
    assert len(check_page(many, [(None, None)] * 1000, strict=False)) < 11_000_000


@settings(max_examples=40, deadline=None)
@given(traces(), traces())
def test_any_two_runs_have_a_page(left: list[StepTable], right: list[StepTable]) -> None:
    """Whatever the runs look like; the picture is plain JSON."""
    document, drawn = _compared(MemoryTrace(left), MemoryTrace(right))
    assert json.loads(json.dumps(drawn)) == drawn
    Page(compare_page(document, drawn))


def test_a_check_of_several_recipes_lists_what_failed_first() -> None:
    """Each with a link to its own part."""
    document, drawn = _compared(*_runs())
    same = {**compare_traces(*(_runs()[0],) * 2).to_json(), "target": "other.py:fine"}
    page = Page(
        check_page({"verdict": "diverged", "results": [same, document]}, [(None, None), (drawn, None)], strict=False)
    )
    assert page.text.index("train.py:tiny") < page.text.index("other.py:fine")
    assert ("href", "#result-1") in page.attributes
    assert ("id", "result-1") in page.attributes


def test_what_is_left_out_of_a_list_is_counted() -> None:
    """Results without a part of their own have no link to one; the end of a long traceback is what was raised."""
    document, _ = _compared(*_runs())
    many = {"verdict": "diverged", "results": [document] * 500}
    page = Page(check_page(many, [(None, None)] * 500, strict=False))
    links, places = ({v for k, v in page.attributes if k == name} for name in ("href", "id"))
    assert links == {f"#{place}" for place in places}
    assert len(places) == 40
    assert "The first 40 are shown in full." in page.text
    assert "… and 100 more" in page.text
    raised = {"slug": "target-raised", "message": "m", "traceback": "  File x\n" * 5000 + "ValueError: the reason"}
    page = Page(compare_page({"verdict": "untestable", "target": "t", "error": raised, "notes": ["n"] * 60}, None))
    assert "ValueError: the reason" in page.text
    assert "… and 10 more" in page.text
    commits = [f"{n:040x}" for n in range(45)]
    found = {**BISECTION, "verdict": "candidates", "first_bad": None, "divergence": None, "candidates": commits,
             "skipped": [{"commit": commit, "reason": "r"} for commit in commits],
             "transitions": [{"commit": commit, "from": "A", "to": "B"} for commit in commits]}  # fmt: skip
    assert Page(bisect_page(found, None)).text.count("… and 5 more") == 3


@pytest.mark.parametrize("first_bad", [None, "c" * 40])
def test_a_bisection_without_a_comparison(first_bad: str | None) -> None:
    """From a journal alone, or with candidates only."""
    verdict = "found" if first_bad else "candidates"
    page = Page(bisect_page({**BISECTION, "verdict": verdict, "first_bad": first_bad, "divergence": None}, None))
    assert "eps=1e-8" in page.text
    assert ("one of" in page.text) == (first_bad is None)
    assert "a note" in page.text


def test_contract_values_only() -> None:
    """Traces without operators have strips and no lists."""
    runs = [trace([contract("loss", "loss", value)], level="contract") for value in (30, 31)]
    document, drawn = _compared(*runs)
    assert drawn["operators"] is None
    assert "Contract, step by step" in Page(compare_page(document, drawn)).text
