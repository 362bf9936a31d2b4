from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import opguard, opguard_json
from tests.guarded import UNSTABLE, Guarded

pytestmark = pytest.mark.usefixtures("shared_servers")


@pytest.fixture
def repo(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path / "r")


def test_bless_log_and_prune(repo: Guarded) -> None:
    """Two blessings, their log, and the events that the first leaves behind, which only prune --delete removes."""
    code, document = opguard_json("bless", "recipe.py:train", "--reason", "first", cwd=repo.dir)
    assert (code, document["verdict"]) == (0, "ok")
    (first,) = document["results"]
    repo.change(eps="1e-3")
    done = opguard("bless", "recipe.py:train", "--reason", "better eps", cwd=repo.dir)
    assert done.returncode == 0
    assert f"Opguard-Rebaseline: {first['recipe']}" in done.stdout
    assert "git add golden" in done.stdout

    code, document = opguard_json("log", "recipe.py:train", cwd=repo.dir)
    (golden,) = document["goldens"]
    newest, oldest = golden["entries"]
    assert (code, [newest["why"], oldest["why"]]) == (0, ["better eps", "first"])
    assert (newest["old"], oldest["old"], oldest["new"]) == (first["new"], None, first["new"])
    assert "<" in newest["who"] and newest["when"].endswith("+00:00")
    shown = opguard("log", "recipe.py:train", cwd=repo.dir).stdout
    assert "better eps" in shown and f"{first['new'][:8]} -> {newest['new'][:8]}" in shown

    objects = repo.dir / "golden" / "objects"
    code, document = opguard_json("prune", cwd=repo.dir)
    assert (code, document["deleted"], len(document["files"]), len(list(objects.iterdir()))) == (0, False, 1, 2)
    assert opguard("prune", "--delete", cwd=repo.dir).returncode == 0
    assert len(list(objects.iterdir())) == 1
    assert "nothing to prune" in opguard("prune", cwd=repo.dir).stdout


def test_prune_knows_the_projects_recipes(repo: Guarded) -> None:
    """Goldens of recipes that are not configured any more can go, and those of a named environment."""
    opguard("bless", "recipe.py:train", "--reason", "first", cwd=repo.dir)
    (file,) = (repo.dir / "golden").glob("*/*.json")
    code, document = opguard_json("prune", "--key", file.stem, cwd=repo.dir)
    assert len(document["files"]) == 2
    repo.git("mv", "recipe.py", "moved.py")
    repo.put("pyproject.toml", '[tool.opguard]\nrecipes = ["*.py"]\n')
    code, document = opguard_json("prune", "--delete", cwd=repo.dir)
    assert (code, document["files"][0]["path"]) == (0, str(file.relative_to(repo.dir)))
    assert list((repo.dir / "golden").rglob("*")) == []


def test_refusals(repo: Guarded) -> None:
    """In CI, without a reason, with changes: exit 2. Unstable: exit 4 and what it is."""
    for words, variables, slug in (
        (["--reason", "x"], {"CI": "true"}, "bless-in-ci"),
        (["--reason", ""], {}, "no-reason"),
        ([], {}, "usage"),
    ):
        code, document = opguard_json("bless", "recipe.py:train", *words, cwd=repo.dir, **variables)
        assert (code, document["error"]["slug"]) == (2, slug)
    repo.net(disturb=UNSTABLE)
    code, document = opguard_json("bless", "recipe.py:train", "--reason", "x", cwd=repo.dir)
    assert (code, document["error"]["slug"]) == (2, "dirty-tree")
    repo.commit("unstable")
    code, document = opguard_json("bless", "recipe.py:train", "--reason", "x", cwd=repo.dir)
    assert (code, document["verdict"], document["results"][0]["verdict"]) == (4, "unstable", "unstable")
    assert not (repo.dir / "golden").exists()


def test_a_target_without_a_golden_has_no_log(repo: Guarded) -> None:
    """Exit 3, as for every missing reference; the file need not exist any more."""
    code, document = opguard_json("log", "gone.py:train", cwd=repo.dir)
    assert (code, document["verdict"], document["goldens"]) == (3, "no-reference", [])


def test_a_golden_is_read_by_compare_and_show(repo: Guarded) -> None:
    """It is a trace like any other."""
    opguard("bless", "recipe.py:train", "--reason", "first", cwd=repo.dir)
    (file,) = (repo.dir / "golden").glob("*/*.json")
    assert json.loads(file.read_text())["target"] == "recipe.py:train"
    assert opguard_json("compare", file, file, cwd=repo.dir)[1]["verdict"] == "identical"
    assert opguard_json("show", file, cwd=repo.dir)[0] == 0
