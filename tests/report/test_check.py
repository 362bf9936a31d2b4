"""The text of ``opguard check``."""

from __future__ import annotations

from typing import Any

import pytest

from opguard_ci.report.check import render_check
from opguard_ci.report.layout import plain


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({"from": 3, "to": 5}, "identical  t  operators from step 3 to step 5 only"),
        ({"from": 3, "to": None}, "identical  t  operators from step 3 on only"),
        (None, "identical  t"),
    ],
)
def test_a_line_that_passes_says_where_it_looked(window: dict[str, Any] | None, said: str) -> None:
    """Operators outside of a window were not compared; the only line about the recipe says so."""
    result = {"verdict": "identical", "target": "t", "reference": {"kind": "commit", "commit": "a" * 40}, "notes": []}
    text = plain(render_check({"results": [{**result, **({"window": window} if window else {})}]}))
    assert said in [line.strip() for line in text.splitlines()]
