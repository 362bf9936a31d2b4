"""The text of a bisection."""

from __future__ import annotations

from opguard_ci.report.bisect import render_bisect
from opguard_ci.report.layout import plain


def test_what_to_run_next() -> None:
    """The commit is shown by git, and the operator repeated by the script that --repro left."""
    document = {"verdict": "found", "first_bad": "c" * 40, "good": "a" * 40, "bad": "b" * 40, "runs": 3, "cached": 0}
    assert "git show cccccccccccc" in plain(render_bisect(document)) and "python" not in plain(render_bisect(document))
    lines = plain(render_bisect({**document, "reproducer": "my repro"})).splitlines()
    assert lines[-1].strip() == "python 'my repro'/repro.py"
