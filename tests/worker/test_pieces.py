"""A commit's change in pieces, against git itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_ci.worker.git import Repository
from opguard_ci.worker.layout import Overlay, arrange
from opguard_ci.worker.pieces import Lines, Pieces
from tests.gitrepo import GitRepo


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    return GitRepo(tmp_path / "r")


def tree_of(git: Repository, commit: str, pieces: Pieces | None = None, subset: object = ()) -> dict[bytes, object]:
    """Mode and blob id by path: of a commit, or of it with pieces laid over."""
    changes = {} if pieces is None else pieces.changes(subset)  # type: ignore[arg-type]
    items = arrange(git.entries(commit), Overlay(changes=changes), git.object_format).items
    return {path: (item.mode, item.id) for path, item in items.items()}


def text_of(pieces: Pieces, path: str, *subset: int) -> bytes:
    item = pieces.changes(subset)[path.encode()]
    assert item is not None
    assert item.data is not None
    return item.data


def everything(repo: GitRepo) -> tuple[str, str]:
    """Two commits with a change of every kind between them."""
    lines = [f"line {number}\n" for number in range(40)]
    repo.put("text.py", "".join(lines))
    repo.put("moved.py", "".join(lines))
    repo.put("gone.py", "x = 1\n")
    repo.put("tool.sh", "#!/bin/sh\n")
    repo.put("data.bin", b"\0\1\2")
    (repo.dir / "link").symlink_to("text.py")
    before = repo.commit("before")
    lines[3], lines[30] = "changed 3\n", "changed 30\nand one more\n"
    repo.put("text.py", "".join(lines))
    (repo.dir / "moved.py").unlink()
    (repo.dir / "gone.py").unlink()
    repo.put("new name.py", "".join(lines))
    repo.put("added.py", "y = 2\n")
    repo.put("tool.sh", "#!/bin/sh\n", 0o755)
    repo.put("data.bin", b"\0\1\3")
    (repo.dir / "link").unlink()
    (repo.dir / "link").symlink_to("added.py")
    return before, repo.commit("after")


def test_every_kind_of_change_is_a_piece(repo: GitRepo) -> None:
    """Hunks with their lines; binary content, modes, names, and whole files each in one."""
    before, after = everything(repo)
    with Repository(repo.dir) as git:
        found = [(p.kind, p.old_path, p.path, p.old, p.new) for p in Pieces(git, before, after).all]
    none, one, hunks = Lines(0, 0), Lines(1, 1), ((Lines(4, 1), Lines(4, 1)), (Lines(31, 1), Lines(31, 2)))
    assert sorted(found) == sorted([
        *(("hunk", "text.py", "text.py", *lines) for lines in hunks),
        *(("hunk", "moved.py", "new name.py", *lines) for lines in hunks),
        ("renamed", "moved.py", "new name.py", none, none),
        ("added", "added.py", "added.py", none, one),
        ("deleted", "gone.py", "gone.py", one, none),
        ("mode", "tool.sh", "tool.sh", none, none),
        ("binary", "data.bin", "data.bin", none, none),
        ("link", "link", "link", none, none),
    ])  # fmt: skip


def test_all_pieces_together_are_the_commit(repo: GitRepo) -> None:
    """And none of them is its parent; a patch of all, put on by git, gives the same."""
    before, after = everything(repo)
    with Repository(repo.dir) as git:
        pieces = Pieces(git, before, after)
        every = range(len(pieces.all))
        assert tree_of(git, before, pieces, every) == tree_of(git, after)
        assert tree_of(git, before, pieces) == tree_of(git, before)
        patch = pieces.patch(every)
    repo.git("checkout", "-q", before)
    repo.git("apply", "--index", "-", stdin=patch)
    assert repo.git("write-tree") == repo.git("rev-parse", f"{after}^{{tree}}")


def test_every_subset_is_what_its_patch_makes(repo: GitRepo) -> None:
    """Each piece alone, and all but each: git applies the patch to the parent and has the same tree."""
    before, after = everything(repo)
    with Repository(repo.dir) as git:
        pieces = Pieces(git, before, after)
        every = frozenset(range(len(pieces.all)))
        for subset in [s for number in every for s in (frozenset({number}), every - {number})]:
            repo.git("read-tree", before)
            repo.git("apply", "--cached", "-", stdin=pieces.patch(subset))
            made = repo.git("write-tree")
            commit = repo.git("commit-tree", made, "-m", "made")
            assert tree_of(git, before, pieces, subset) == tree_of(git, commit), subset


def test_hunks_of_one_file_are_laid_one_by_one(repo: GitRepo) -> None:
    """A renamed file takes its hunks under either name."""
    before, after = everything(repo)
    with Repository(repo.dir) as git:
        pieces = Pieces(git, before, after)
        numbers = {(p.kind, p.path, p.old.first): number for number, p in enumerate(pieces.all)}
        first, move = numbers["hunk", "new name.py", 4], numbers["renamed", "new name.py", 0]
        stays = text_of(pieces, "moved.py", first)
        assert stays.splitlines()[3] == b"changed 3"
        assert stays.splitlines()[30] == b"line 30"
        assert pieces.changes([first, move])[b"moved.py"] is None
        assert text_of(pieces, "new name.py", first, move) == stays


def test_pinned_paths_are_left_out(repo: GitRepo) -> None:
    """What is laid over every commit anyway cannot be what changed the numbers."""
    before, after = everything(repo)
    with Repository(repo.dir) as git:
        assert {p.path for p in Pieces(git, before, after, ignored=["text.py", "moved.py"]).all}.isdisjoint(
            ("text.py", "new name.py")
        )


def test_a_change_of_what_a_path_is(repo: GitRepo) -> None:
    """A file that becomes a link, and a folder that becomes a file, are wholes."""
    repo.put("a", "text\n")
    repo.put("b/c", "text\n")
    before = repo.commit("before")
    (repo.dir / "a").unlink()
    (repo.dir / "a").symlink_to("b")
    (repo.dir / "b" / "c").unlink()
    (repo.dir / "b").rmdir()
    repo.put("b", "something else\n")
    after = repo.commit("after")
    with Repository(repo.dir) as git:
        pieces = Pieces(git, before, after)
        assert {(p.kind, p.path) for p in pieces.all} == {("link", "a"), ("deleted", "b/c"), ("added", "b")}
        assert tree_of(git, before, pieces, range(3)) == tree_of(git, after)


def test_what_the_checkout_configures_changes_nothing(repo: GitRepo) -> None:
    """Settings of `git diff` that people have, and a foreign diff program."""
    before, after = everything(repo)
    with Repository(repo.dir) as git:
        plain = Pieces(git, before, after).all
        for name, value in (("diff.noprefix", "true"), ("diff.context", "9"), ("diff.interHunkContext", "99"),
                            ("diff.algorithm", "patience"), ("diff.external", "false"), ("color.diff", "always"),
                            ("diff.renames", "false"), ("core.abbrev", "4"), ("diff.mnemonicPrefix", "true"),
                            ("diff.relative", "true"), ("core.quotePath", "true")):  # fmt: skip
            repo.git("config", name, value)
        assert Pieces(git, before, after).all == plain
        assert Pieces(git, before, after).patch(range(3))


lines = st.lists(st.sampled_from([b"a", b"b", b"-- a", b"+ b", b"@@ -1 +1 @@", b"\\ x", b"\xff\r", b""]), max_size=8)
texts = st.tuples(lines, st.booleans()).map(lambda t: b"\n".join(t[0]) + b"\n" * t[1])


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes, bytes], tuple[Path, str, str]]:
    """Makes two commits of a file quickly."""
    repo = GitRepo(tmp_path_factory.mktemp("numbered") / "r")

    def make(before: bytes, after: bytes) -> tuple[Path, str, str]:
        feed = b""
        for mark, text in ((1, before), (3, after)):
            feed += b"blob\nmark :%d\ndata %d\n%s\n" % (mark, len(text), text)
            feed += b"commit refs/heads/x%d\nmark :%d\ncommitter a <a@b> 0 +0000\ndata 0\n" % (mark, mark + 1)
            feed += b"M 100644 :%d f\n\n" % mark
        marks = repo.dir / "marks"
        subprocess.run(["git", "fast-import", "--quiet", "--force", f"--export-marks={marks}"], cwd=repo.dir,
                       input=feed, check=True, env=os.environ)  # fmt: skip
        named = dict(line.split() for line in marks.read_text().splitlines())
        return repo.dir, named[":2"], named[":4"]

    return make


@settings(max_examples=25, deadline=None)
@given(before=texts, after=texts)
def test_hunks_give_the_text_back(
    numbered: Callable[[bytes, bytes], tuple[Path, str, str]], before: bytes, after: bytes
) -> None:
    """Whatever lines look like, and whether the last one has an end: hunks put on one by one come to the new text."""
    folder, old, new = numbered(before, after)
    with Repository(folder) as git:
        pieces = Pieces(git, old, new)
        assert tree_of(git, old, pieces, range(len(pieces.all))) == tree_of(git, new)
        data = io_lines(before)
        for piece in reversed(pieces.all):
            assert piece.kind == "hunk"
            assert tuple(data[piece.old.slice]) == piece.removed
            data[piece.old.slice] = piece.added
        assert b"".join(data) == after


def io_lines(data: bytes) -> list[bytes]:
    return [line + b"\n" for line in data.split(b"\n")[:-1]] + [data.split(b"\n")[-1]] * (not data.endswith(b"\n"))
