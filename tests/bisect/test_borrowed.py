"""Commits that lack the target's file, or what it needs: the working tree's file is lent to them, and proves no more
than it can.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opguard_ci.bisect.driver import replay
from opguard_ci.bisect.history import history
from opguard_ci.errors import UntestableError
from opguard_ci.guard import Project
from opguard_ci.report.bisect import render_history
from opguard_ci.worker.places import Job
from tests.gitrepo import GitRepo

from .test_driver import CHANGED, RECIPE, STEADY, quietly, search

pytestmark = pytest.mark.usefixtures("own_cache")

FASTER = RECIPE.replace("lr=0.1", "lr=0.2")


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    made = GitRepo(tmp_path / "project")
    made.commit("first", recipe=RECIPE, net=STEADY)
    return made


def _without_recipe(repo: GitRepo) -> str:
    (repo.dir / "recipe.py").unlink()
    return repo.commit("recipe dropped")


def _subjects(found: dict[str, Any]) -> list[str]:
    return [found["subjects"][commit] for commit in found["candidates"]]


def test_a_commit_that_drops_the_recipe_is_not_blamed_for_another_that_came_back(repo: GitRepo) -> None:
    """The recipe came back with another rate: until then nobody knows. The journal says the same."""
    good = repo.git("rev-parse", "HEAD")
    _without_recipe(repo)
    bad = repo.commit("recipe again", recipe=FASTER)
    found = search(repo.dir, good, bad)
    assert (found["verdict"], _subjects(found)) == ("candidates", ["recipe dropped", "recipe again"])
    assert found["skipped"][0]["reason"].startswith("target-borrowed: recipe.py")
    with Project(repo.dir) as project:
        assert replay(project, Path(found["journal"]))["candidates"] == found["candidates"]


def test_a_folder_whose_name_begins_with_dots_lies_below_the_root(repo: GitRepo) -> None:
    """It is not the one above."""
    (repo.dir / "..odd").mkdir()
    (repo.dir / "..odd" / "recipe.py").write_text(RECIPE)
    with Project(repo.dir) as project:
        assert project.commits.places.spots(Job("..odd/recipe.py:train", str(repo.dir))) == ["..odd/recipe.py"]


def test_a_history_says_which_commits_borrow_the_recipe(repo: GitRepo) -> None:
    """Their letters may be the working tree's recipe's."""
    good = repo.git("rev-parse", "HEAD")
    dropped = _without_recipe(repo)
    last = repo.commit("recipe again", recipe=FASTER)
    with Project(repo.dir) as project:
        found = history(project, Job("recipe.py:train", str(repo.dir)), good, last, 1, quietly)
    assert [row["class"] for row in found["commits"]] == ["A", "B", "B"]
    assert found["notes"] == [f"{dropped[:12]}: recipe.py is not in this commit; the working tree's was laid over."]
    assert any("laid over" in line.text for line in render_history(found))


def test_code_that_changes_while_the_recipe_is_gone_is_found(repo: GitRepo) -> None:
    """All commits run the same recipe, their own or the working tree's."""
    good = repo.git("rev-parse", "HEAD")
    _without_recipe(repo)
    changed = repo.commit("changed", net=CHANGED)
    assert search(repo.dir, good, repo.commit("recipe again", recipe=RECIPE))["first_bad"] == changed


def test_dropping_the_recipe_and_changing_the_code_at_once_is_found(repo: GitRepo) -> None:
    """The commit before, given the working tree's recipe, computes something else than this one with it."""
    good = repo.git("rev-parse", "HEAD")
    repo.put("net.py", CHANGED)
    dropped = _without_recipe(repo)
    assert search(repo.dir, good, repo.commit("recipe again", recipe=FASTER))["first_bad"] == dropped


def test_a_good_end_that_only_borrows_another_recipe_proves_nothing(repo: GitRepo) -> None:
    """A recipe that was moved, and changed later: the move is not blamed; equal ends say what they ran."""
    good = repo.git("rev-parse", "HEAD")
    repo.git("mv", "recipe.py", "train.py")
    moved = repo.commit("moved")
    bad = repo.commit("faster", train=FASTER)
    target = {"target": "train.py:train"}
    equal = search(repo.dir, good, bad, **target)
    assert equal["verdict"] == "nothing"
    assert "good end: train.py is not in this commit; the working tree's was laid over." in equal["notes"]
    repo.put("train.py", RECIPE.replace("lr=0.1", "lr=0.3"))
    with pytest.raises(UntestableError, match=r"--pin train\.py") as caught:
        search(repo.dir, good, bad, **target)
    assert caught.value.slug == "untestable-good"
    assert search(repo.dir, moved, bad, **target)["first_bad"] == bad


def test_a_recipe_that_is_a_link_to_another_one_is_followed_in_each_commit(repo: GitRepo) -> None:
    """What counts is where a commit's own link leads. A link that no commit has is where it leads."""
    repo.put("recipes/fast.py", FASTER)
    repo.git("mv", "recipe.py", "recipes/slow.py")
    link = repo.dir / "recipe.py"
    link.symlink_to("recipes/slow.py")
    good = repo.commit("recipe: slow")
    link.unlink()
    link.symlink_to("recipes/fast.py")
    bad = repo.commit("recipe: fast")
    assert search(repo.dir, good, bad)["first_bad"] == bad
    (repo.dir / "own.py").symlink_to("recipes/fast.py")
    changed = repo.git("commit-tree", "-p", bad, "-m", "changed", _tree_with(repo, CHANGED))
    assert search(repo.dir, good, changed, target="own.py:train")["first_bad"] == changed


def _tree_with(repo: GitRepo, net: str) -> str:
    """The tree of HEAD with another ``net.py``; the working tree stays."""
    blob = repo.git("hash-object", "-w", "--stdin", stdin=net.encode())
    lines = repo.git("ls-tree", "HEAD").splitlines()
    listed = [line for line in lines if not line.endswith("\tnet.py")]
    return repo.git("mktree", stdin="\n".join([*listed, f"100644 blob {blob}\tnet.py"]).encode())


def test_a_submodule_that_moves_with_the_fault(repo: GitRepo, tmp_path: Path) -> None:
    """What the checkout has of a submodule is laid out at each commit."""
    other = GitRepo(tmp_path / "vendor")
    other.commit("first", parts=STEADY)
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.dir), "vendor")
    good = repo.commit("vendored", recipe=RECIPE.replace("from net import scale", "from vendor.parts import scale"))
    GitRepo(repo.dir / "vendor").commit("changed", parts=CHANGED)
    bad = repo.commit("vendor moved")
    repo.commit("later", note="# later")
    found = search(repo.dir, good, "HEAD")
    assert (found["verdict"], found["first_bad"]) == ("found", bad)


@pytest.mark.parametrize("kind", ["submodule", "pointer"])
def test_what_a_tree_lacks_is_told_with_what_it_broke(repo: GitRepo, kind: str) -> None:
    """Submodules are empty in a commit's tree, and Git LFS pointers stay pointers."""
    if kind == "submodule":
        (repo.dir / "vendor").mkdir()
        repo.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},vendor")
        needs, told = (
            "from vendor.parts import scale",
            "submodules that the checkout lacks (git submodule update --init) are empty folders in this tree: vendor",
        )
    else:
        repo.put("data.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
        needs = "scale = lambda: float(open('data.txt').read())"
        told = "Git LFS pointers stand for the files they name: data.txt"
    good = repo.commit("needs more", recipe=RECIPE.replace("from net import scale", needs))
    bad = repo.commit("changed", net=CHANGED)
    with pytest.raises(UntestableError) as caught:
        search(repo.dir, good, bad)
    assert told in caught.value.message
