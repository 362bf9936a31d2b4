"""Submodules are laid out at each commit from what the checkout has of them, and nothing else is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opguard_ci.errors import UntestableError
from opguard_ci.worker.git import Repository
from opguard_ci.worker.layout import Item, Overlay, arrange, with_submodules
from opguard_ci.worker.objects import Entry
from opguard_ci.worker.tree import Tree
from tests.gitrepo import GitRepo, fingerprint

from .test_tree import content

ADD = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")


@pytest.fixture
def nested(tmp_path: Path) -> tuple[GitRepo, list[str]]:
    """A project with a submodule that has one itself, and the three commits in which the first one moves."""
    inner, outer, project = (GitRepo(tmp_path / name) for name in ("inner", "outer", "project"))
    inner.commit("one", deep="1")
    outer.commit("one", a="1")
    outer.git(*ADD, str(inner.dir), "in")
    outer.commit("with another")
    project.git(*ADD, str(outer.dir), "lib/out")
    project.git("-c", "protocol.file.allow=always", "submodule", "update", "--quiet", "--init", "--recursive")
    commits = [project.commit("one", main="1")]
    clone = GitRepo(project.dir / "lib/out")
    clone.put("a.py", "2")
    clone.git("mv", "a.py", "b.py")
    clone.commit("two")
    commits += [project.commit("moved"), project.commit("more", main="2")]
    return project, commits


def test_each_commit_has_its_own(nested: tuple[GitRepo, list[str]], tmp_path: Path) -> None:
    """Also of submodules in submodules; trees that are laid out and trees that are not have different names."""
    project, (first, moved, last) = nested
    before = fingerprint(project.dir)
    with Repository(project.dir) as git, Tree(git, cache=tmp_path / "cache") as tree:
        deep = {"lib/out/in/deep.py": b"1"}
        for commit, part, main in ((first, "a", b"1"), (last, "b", b"2"), (moved, "b", b"1"), (first, "a", b"1")):
            done = tree.checkout(commit)
            found = {name: data for name, data in content(done.path).items() if ".gitmodules" not in name}
            assert found == {"main.py": main, f"lib/out/{part}.py": b"1" if part == "a" else b"2", **deep}
            assert f"lib/out/{part}.py" in done.files
            assert not done.notes
        names = [git.tree_hash(commit, paths) for commit in (first, moved) for paths in ((), ("lib",), ("main.py",))]
        link = git.submodules.laid_out(git.entries(moved))[0].encode()
        changed = tree.checkout(first, Overlay(changes={b"lib/out": Item(0o160000, link.decode())}))
        assert "lib/out/b.py" in changed.files
    assert fingerprint(project.dir) == before
    assert names[2] == names[5]
    assert len({*names[:2], *names[3:5]}) == 4

    shutil.rmtree(project.dir / ".git" / "modules")
    with Repository(project.dir) as git, Tree(git, cache=tmp_path / "cache") as tree:
        done = tree.checkout(first)
        assert {".gitmodules", "main.py", "lib/out/"} == set(content(done.path))
        assert done.notes == (
            "submodules that the checkout lacks (git submodule update --init) are empty folders in this tree: lib/out",
        )
        assert git.tree_hash(first) == git.tree(first) != names[0]
        assert git.tree_hash(first, ("main.py",)) == names[2]


def test_a_submodule_stays_in_its_folder() -> None:
    """Paths that no honest git writes are refused there too."""
    layout = arrange([Entry(0o160000, "commit", "1" * 40, b"lib")], Overlay())
    for hostile in (b"../x", b".git/config", b"/x"):
        with pytest.raises(UntestableError) as caught:
            with_submodules(layout, lambda _, path=hostile: [Entry(0o100644, "blob", "2" * 40, path)])
        assert caught.value.slug == "unsafe-tree"
