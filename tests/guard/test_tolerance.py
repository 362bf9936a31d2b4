"""A recipe with a tolerance, through check, goldens and bisect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opguard_ci.bisect.driver import BisectOptions, bisect
from opguard_ci.bless import BlessOptions, bless
from opguard_ci.guard import Project, check
from opguard_ci.jobs import Asked, jobs_of
from opguard_ci.reference import Wanted
from opguard_ci.worker.places import Job
from tests.gitrepo import GitRepo

pytestmark = pytest.mark.usefixtures("own_cache")

RECIPE = """\
import torch
from net import BITS
from opguard_ci import recipe, ulp


@recipe(steps=3, tolerance={{"loss": ulp({ulps})}})
def train():
    for step in range(3):
        yield {{"loss": torch.tensor([0x3F800000 + step + BITS], dtype=torch.int32).view(torch.float32).sum()}}
"""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitRepo:
    """A loss at 2 ulp of tolerance."""
    monkeypatch.delenv("CI", raising=False)
    made = GitRepo(tmp_path / "r")
    made.put("recipe.py", RECIPE.format(ulps=2))
    made.put("net.py", "BITS = 0\n")
    made.put("pyproject.toml", '[tool.opguard]\nrecipes = ["recipe.py:train"]\n')
    made.git("config", "user.name", "Ada")
    made.git("config", "user.email", "ada@example.invalid")
    made.commit("the first")
    return made


def bits(repo: GitRepo, ulps: int) -> str:
    """A commit whose losses lie so many ulps above the first one's."""
    repo.put("net.py", f"BITS = {ulps}\n")
    return repo.commit(f"{ulps} ulp")


def checked(repo: GitRepo, commit: str | None = None) -> dict[str, Any]:
    with Project(repo.dir) as project:
        (job,) = jobs_of(project, [], str(repo.dir), Asked())
        return check(project, job, Wanted(commit, None)).document


def test_a_golden_holds_the_numbers(repo: GitRepo):
    """So that a run is near to it or not; a recipe that allows more does not make its own change pass."""
    with Project(repo.dir) as project:
        bless(project, jobs_of(project, [], str(repo.dir), Asked()), BlessOptions("right"))
    bits(repo, 2)
    near = checked(repo)
    assert near["verdict"] == "equivalent"
    assert near["tolerance"]["largest"]["max_ulp"] == 2
    bits(repo, 3)
    assert checked(repo)["verdict"] == "diverged"
    repo.put("recipe.py", RECIPE.format(ulps=9))
    widened = checked(repo)
    assert widened["verdict"] == "diverged"
    assert any("only what both say" in note for note in widened["notes"])


def test_bisect_passes_over_what_is_within_tolerance(repo: GitRepo):
    """And finds the commit that left it."""
    first = repo.git("rev-parse", "HEAD")
    bits(repo, 1)
    culprit = bits(repo, 5)
    bits(repo, 6)
    with Project(repo.dir) as project:
        found = bisect(
            project, Job("recipe.py:train", str(repo.dir)), first, "HEAD", BisectOptions(progress=lambda _: None)
        )
    assert (found["verdict"], found["first_bad"]) == ("found", culprit)
    assert any("Tolerance of the recipe: loss ulp(2)" in note for note in found["notes"])
