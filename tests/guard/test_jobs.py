from __future__ import annotations

from pathlib import Path

import pytest

from opguard_ci.errors import UsageError
from opguard_ci.guard import Project
from opguard_ci.jobs import Asked, jobs_of
from tests.gitrepo import GitRepo

RECIPES = """\
import opguard_ci
from opguard_ci import recipe

@recipe(steps=1, level="contract", timeout=7, profile="portable")
def first():
    yield {}

def helper():
    pass

@opguard_ci.recipe(steps=2)
def second():
    yield {}
"""


def repository(tmp_path: Path, config: str) -> GitRepo:
    repo = GitRepo(tmp_path / "r")
    repo.put("pyproject.toml", f"[tool.opguard]\n{config}")
    repo.put(".gitignore", "venv/\n")
    repo.put("tests/räte und tests/a.py", RECIPES)
    repo.put("tests/none.py", "x = 1\n")
    repo.put("tests/broken.py", "def (\n")
    repo.put("venv/lib/b.py", RECIPES)
    repo.put("script.py", "")
    return repo


def targets(repo: GitRepo, *given: str, cwd: str = "") -> list[str]:
    with Project(repo.dir) as project:
        return [job.target for job in jobs_of(project, given, str(repo.dir / cwd), Asked())]


def test_globs_stand_for_the_recipes_in_files(tmp_path: Path) -> None:
    """Decorated functions in order of files and lines; ignored files, other functions and broken files are left out."""
    repo = repository(tmp_path, 'recipes = ["**/*.py", "script.py"]')
    place = "tests/räte und tests/a.py"
    assert targets(repo) == [f"{place}:first", f"{place}:second", "script.py"]


def test_given_targets_replace_the_configured_ones(tmp_path: Path) -> None:
    """They count from the caller's folder; one named twice is run once."""
    repo = repository(tmp_path, 'recipes = ["nowhere.py"]')
    assert targets(repo, "none.py:f", "none.py:f", cwd="tests") == ["none.py:f"]


@pytest.mark.parametrize(
    ("config", "given", "slug"),
    [
        ("", (), "no-targets"),
        ('recipes = ["tests/n*.py"]', (), "no-targets"),
        ('recipes = ["nowhere.py:f"]', (), "target-not-found"),
        ("", ("nowhere.py:f",), "target-not-found"),
        ("", ("a b:f",), "bad-target"),
    ],
)
def test_nothing_to_run(tmp_path: Path, config: str, given: tuple[str, ...], slug: str) -> None:
    """No targets at all, a glob that matches no recipe, a file that is not there."""
    repo = repository(tmp_path, config)
    with pytest.raises(UsageError) as caught:
        targets(repo, *given)
    assert caught.value.slug == slug


def test_what_is_asked_comes_before_the_recipe_before_the_project(tmp_path: Path) -> None:
    """Profile, level and timeout."""
    repo = repository(tmp_path, 'level = "full"\nprofile = "observe"\nrecipes = ["**/a.py", "script.py"]')
    with Project(repo.dir) as project:
        first, second, script = jobs_of(project, (), str(repo.dir), Asked())
        profiles = [project.commits.places.profile(job) for job in (first, second, script)]
        assert profiles == ["portable", "observe", "observe"]
        assert [job.level for job in (first, second)] == ["contract", "full"]
        (asked,) = jobs_of(project, (first.target,), str(repo.dir), Asked("strict", "full", 3.0, ("--lr", "1")))
        assert (project.commits.places.profile(asked), asked.level, asked.timeout, asked.argv) == (
            "strict", "full", 3.0, ("--lr", "1"),
        )  # fmt: skip
