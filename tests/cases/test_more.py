"""Programs of our own get their verdict, also with good and bad swapped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases.expectations import Case, more_cases
from tests.cases.served import run_side
from tests.cases.sides import Sides

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("case", more_cases(), ids=lambda case: case.name)
def test_case(case: Case, tmp_path: Path):
    """Verdict, cause, operator and step are what the program's constants say."""
    sides = Sides(case, tmp_path, run_side)
    for variant in ("original", "swapped"):
        examined = sides.examine(variant)
        assert not examined.problems, variant + json.dumps(examined.verdict.get("first_divergence"), indent=1)
