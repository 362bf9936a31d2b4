"""Which functions and files are tests, and what a recipe can be given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_opguard.collecting import is_listed
from tests.pytest_opguard.conftest import RECIPE, TEST, Project, text_of

pytest_plugins = "pytester"

WITH_WIDTH = "import pytest\n" + RECIPE.replace("train()", "train(width)").replace("run()", "run(width)")
PARAMETRIZED = WITH_WIDTH.replace("@recipe", "@pytest.mark.parametrize('width', [4, 8])\n@recipe")


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in text_of(result).splitlines() if "::" in line]


def test_recipes_beside_tests(project: Project) -> None:
    """A recipe in a collected file is a test beside the others, whatever its name; a helper is none."""
    project.write(test_both=f"{RECIPE}\n\ndef test_ordinary(): pass\n\ndef helper(): yield\n", recipe=RECIPE)
    assert collected(project.pytest("--collect-only", "-q")) == ["test_both.py::train", "test_both.py::test_ordinary"]
    assert collected(project.pytest("--collect-only", "-q", "recipe.py")) == ["recipe.py::train"]


def test_listed_files_are_collected(project: Project) -> None:
    """A file that [tool.opguard] lists is collected although pytest's patterns do not match it, and once."""
    alone = RECIPE.replace("from lib import run\n", "").replace("run()", "()")
    project.write(test_a=RECIPE, recipes__b=alone)
    (project.dir / "pyproject.toml").write_text('[tool.opguard]\nrecipes = ["recipes/*.py", "test_a.py:train"]\n')
    assert sorted(collected(project.pytest("--collect-only", "-q"))) == ["recipes/b.py::train", "test_a.py::train"]


@pytest.mark.parametrize(
    ("entry", "file", "listed"),
    [
        ("recipe.py:train", "recipe.py", True),
        ("recipe.py", "recipe.py", True),
        ("recipe.py:train", "other/recipe.py", False),
        ("recipes/**/*.py", "recipes/a.py", True),
        ("recipes/**/*.py", "recipes/deep/a.py", True),
        ("recipes/*.py", "tests/a.py", False),
        ("package.recipes:train", "src/package/recipes.py", True),
        ("package.recipes:train", "package/recipes.py", True),
        ("package.recipes:train", "package/others.py", False),
    ],
)
def test_what_a_list_names(entry: str, file: str, listed: bool) -> None:
    """Targets name their file; globs and modules name files below the root."""
    root = Path("/project")
    assert is_listed(root / file, root, (entry,)) is listed
    assert not is_listed(Path("/elsewhere") / file, root, (entry,))


def test_wrong_project_settings_are_a_usage_error(project: Project) -> None:
    """A key of [tool.opguard] that does not exist ends the session with one line."""
    (project.dir / "pyproject.toml").write_text("[tool.opguard]\nrecipe = []\n")
    result = project.pytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "did you mean 'recipes'? [bad-config]" in str(result.stderr)


def test_parameters(project: Project) -> None:
    """A parametrized recipe is one test per set, run with its own values; -k and node ids select among them."""
    project.write(recipe=PARAMETRIZED)
    project.git.commit("parameters")
    result = project.pytest("recipe.py", "--opguard-reference=HEAD", "-v")
    result.assert_outcomes(passed=2)
    assert {"recipe.py::train[4]", "recipe.py::train[8]"} <= set(re.findall(r"^\S+::\S+", text_of(result), re.M))
    project.edit("torch.randn(4, 4)", "torch.randn(width, 4)")  # what it was for a width of 4
    result = project.pytest("recipe.py", "--opguard-reference=HEAD", "-k", "train and 8")
    result.assert_outcomes(failed=1, deselected=1)
    project.pytest("recipe.py::train[4]", "--opguard-reference=HEAD").assert_outcomes(passed=1)


def test_conftest_and_paths_hold_in_the_child(project: Project) -> None:
    """A recipe that only pytest can import is collected by pytest in the child too, here and at the reference."""
    nested = RECIPE.replace("from lib", "from .helpers import NAME\nfrom paths import OFFSET\nfrom lib")
    project.write(
        checks__test_nested=nested, checks__helpers="NAME = 1\n", extra__paths="OFFSET = 1\n",
        checks__conftest="import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'extra'))\n",
    )  # fmt: skip
    project.git.put("checks/__init__.py", "")
    project.git.commit("nested")
    project.pytest("checks", "--opguard-reference=HEAD").assert_outcomes(passed=1)
    project.edit()
    result = project.pytest("checks", "--opguard-reference=HEAD")
    result.assert_outcomes(failed=1)
    assert "pytest_opguard.node:train_" in text_of(result)


def test_a_commit_without_the_recipe_gets_it(project: Project) -> None:
    """A commit older than the recipe is run with the working tree's file, and the report says so."""
    project.write(test_new=RECIPE + "\n\n" + PARAMETRIZED.replace("def train", "def sized"))
    result = project.pytest("test_new.py", "--opguard-reference=HEAD", "--opguard-report=reports")
    result.assert_outcomes(passed=3)
    assert "is not in this commit" in (next((project.dir / "reports").glob("*train*.json"))).read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WITH_WIDTH, "train needs the arguments width"),
        (PARAMETRIZED.replace("[4, 8]", "[4, 8], indirect=True"), "train is parametrized through fixtures"),
        (RECIPE.replace("@recipe", "import pytest\n@pytest.mark.usefixtures('tmp_path')\n@recipe"), "train uses"),
        ("from opguard_ci import recipe\n\n\nclass TestIt:\n    @recipe(steps=1)\n    def train(self): pass\n",
         "train is a method"),
    ],
)  # fmt: skip
def test_what_cannot_be_given_is_a_collection_error(project: Project, text: str, told: str) -> None:
    """A recipe runs in a process of its own: what would need a fixture is refused where it is collected, with why."""
    project.write(recipe=text)
    result = project.pytest("recipe.py")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    assert told in text_of(result)
    if "method" not in told:
        assert "where fixtures and monkeypatch do not reach" in text_of(result)


def test_marker(project: Project) -> None:
    """``-m opguard`` selects recipes and tests with the fixture; the marker's arguments are options of one test."""
    project.write(
        test_it=f"{TEST}\n\ndef test_other(): pass\n",
        recipe=RECIPE.replace("@recipe", "import pytest\n\n@pytest.mark.opguard(missing='skip')\n@recipe"),
    )
    found = collected(
        project.pytest("--collect-only", "-q", "--strict-markers", "-m", "opguard", "test_it.py", "recipe.py")
    )
    assert found == ["test_it.py::test_steps", "recipe.py::train"]
    project.pytest("recipe.py", "--opguard-missing=fail").assert_outcomes(skipped=1)
    project.edit("missing='skip'", "missing='perhaps'", "recipe.py")
    wrong = project.pytest("recipe.py")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    assert "takes level, profile, missing, strict" in str(wrong.stderr)
