"""Every acceptance case gets its verdict, also as its twins."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cases.expectations import Case, all_cases
from tests.cases.served import run_side
from tests.cases.sides import VARIANTS, Sides

pytestmark = pytest.mark.usefixtures("own_cache")

PARAMETERS = [pytest.param(case, variant, id=f"{case.name}[{variant}]") for case in all_cases() for variant in VARIANTS]

PROBE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("case", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(bool(module.REQUIRES())))
"""


@pytest.fixture(scope="module")
def every_side(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sides]:
    folder = tmp_path_factory.mktemp("cases")
    return {case.name: Sides(case, folder / case.name, run_side) for case in all_cases()}


@pytest.fixture(scope="module")
def showable() -> dict[str, bool]:
    """Whether this machine can show the effect, for each case that asks."""
    answers = {}
    for case in all_cases():
        if "REQUIRES" in case.functions:
            # Not in this process: it may start threads, which a later fork would lose.
            done = subprocess.run([sys.executable, "-c", PROBE, str(case.path)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            answers[case.name] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize(("case", "variant"), PARAMETERS)
def test_case(case: Case, variant: str, every_side: dict[str, Sides], showable: dict[str, bool]):
    """Verdict, cause, operator and step are what the program's constants say."""
    if not showable.get(case.name, True):
        pytest.skip(f"this machine cannot show the effect of {case.name}: its REQUIRES() is false")
    examined = every_side[case.name].examine(variant)
    assert not examined.problems, json.dumps(examined.verdict.get("first_divergence"), indent=1)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in all_cases()])
def test_case_at_level_op(case: Case, tmp_path: Path, showable: dict[str, bool]):
    """Every case gets the same verdict where inputs are not looked at: none of their foreign writes goes unnoticed,
    since numpy has the memory, or a first call is looked at.
    """
    if not showable.get(case.name, True):
        pytest.skip(f"this machine cannot show the effect of {case.name}: its REQUIRES() is false")
    examined = Sides(case, tmp_path, partial(run_side, level="op")).examine("original")
    assert not examined.problems, json.dumps(examined.verdict.get("first_divergence"), indent=1)


def test_the_data_folder_has_forty_programs():
    """No case is left out."""
    assert len({case.name for case in all_cases()}) == 40
