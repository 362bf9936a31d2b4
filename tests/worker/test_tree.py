"""One clean tree per commit: exact bytes, cheap updates, nothing left of earlier runs, nothing touched elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opguard_ci.errors import UntestableError, UsageError
from opguard_ci.worker import layout
from opguard_ci.worker.git import Repository
from opguard_ci.worker.layout import Overlay
from opguard_ci.worker.pool import Pool
from opguard_ci.worker.tree import Tree
from tests.gitrepo import GitRepo, fingerprint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    return GitRepo(tmp_path / "repo")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def content(folder: Path) -> dict[str, bytes]:
    """Files and links below a folder, with an ``x`` for executables and a ``/`` for empty folders."""
    found = {}
    for place, folders, files in os.walk(folder):
        if not folders and not files and place != str(folder):
            found[os.path.relpath(place, folder) + "/"] = b""
        for name in (*files, *(f for f in folders if Path(place, f).is_symlink())):
            full = Path(place, name)
            mark = " x" if not full.is_symlink() and full.stat().st_mode & stat.S_IXUSR else ""
            data = os.fsencode(full.readlink()) if full.is_symlink() else full.read_bytes()
            found[os.path.relpath(full, folder) + mark] = data
    return found


def odd_commit(repo: GitRepo) -> str:
    repo.put("pkg/a.py", "A = 1\r\n")
    repo.put("run.sh", "#!/bin/sh\n", 0o755)
    repo.put("with space/\u00fc \n.txt", "odd")
    repo.put(os.fsdecode(b"bad\xff\xfe"), b"\x00\xff")
    repo.put(".gitattributes", "*.py text eol=crlf export-ignore\n*.txt export-subst ident\n")
    (repo.dir / "inside").symlink_to("pkg/a.py")
    (repo.dir / "pkg" / "outside").symlink_to("../../elsewhere")
    repo.put("big.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    return repo.commit("odd")


def test_a_tree_is_what_git_stores(repo, cache):
    """Raw bytes, modes, links and odd names; what such a tree cannot hold is said."""
    commit = odd_commit(repo)
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        done = tree.checkout(commit)
        stored = {
            os.fsdecode(e.path) + (" x" if e.mode == 0o100755 else ""): git.blob(e.id) for e in git.entries(commit)
        }
        assert content(done.path) == stored
        assert done.files["pkg/a.py"] == repo.git("rev-parse", f"{commit}:pkg/a.py")
        assert "inside" not in done.files
        assert [note.partition(":")[0][:20] for note in done.notes] == ["Git LFS pointers sta", "links point out of t"]
        assert "pkg/outside" in done.notes[1]


def test_only_differences_are_written(repo, cache):
    """Going from commit to commit touches what changed, and removes what is no longer there."""
    repo.put("deep/er/x.py", "x")
    first = repo.commit("one", a="1", b="1", c="1")
    shutil.rmtree(repo.dir / "deep")
    repo.put("d", "now a file")
    second = repo.commit("two", a="2")
    (repo.dir / "d").unlink()
    repo.put("d/e.py", "now a folder")
    (repo.dir / "b.py").chmod(0o755)
    third = repo.commit("three")
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        assert tree.checkout(first).written == 4
        kept = (tree.path / "b.py").stat().st_ino
        assert (tree.checkout(second).written, kept) == (2, (tree.path / "b.py").stat().st_ino)
        assert not (tree.path / "deep").exists()
        assert tree.checkout(third).written == 2
        assert tree.checkout(third).written == 0
        for commit in (first, third, second, first):
            tree.checkout(commit)
            assert content(tree.path) == {
                os.fsdecode(e.path) + (" x" if e.mode == 0o100755 else ""): git.blob(e.id) for e in git.entries(commit)
            }


def vandalise(tree: Path) -> None:
    """What a run may do to its tree."""
    (tree / "pkg" / "__pycache__").mkdir()
    (tree / "pkg" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"stale")
    (tree / "out" / "deep").mkdir(parents=True)
    (tree / "out" / "deep" / "weights.bin").write_bytes(b"w")
    (tree / "out" / "deep").chmod(0)
    before = (tree / "pkg" / "a.py").stat()
    (tree / "pkg" / "a.py").write_text("A = 2\r\n")
    os.utime(tree / "pkg" / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tree / "run.sh").chmod(0o644)
    (tree / "inside").unlink()
    (tree / "inside").symlink_to("/etc/passwd")
    shutil.rmtree(tree / "with space")
    (tree / "with space").symlink_to(tree.parent)
    (tree / ".gitattributes").unlink()
    (tree / ".gitattributes").mkdir()
    os.mkfifo(tree / "pipe")


def test_what_a_run_did_is_undone(repo, cache):
    """Same-size edits with a forged time, strays, locked folders, swapped links: the next checkout is clean."""
    commit = odd_commit(repo)
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        tree.checkout(commit)
        clean = content(tree.path)
        vandalise(tree.path)
        assert tree.checkout(commit).written > 0
        assert content(tree.path) == clean
        vandalise(tree.path)
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        tree.checkout(commit)
        assert content(tree.path) == clean


def test_a_change_within_one_clock_tick_is_found(repo, cache):
    """Right after writing, times may not move: such files are compared by their bytes."""
    commit = repo.commit("one", **{f"m{n}": f"X = {n}" for n in range(30)})
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        for _ in range(5):
            tree.checkout(commit)
            for path in tree.path.glob("*.py"):
                with path.open("r+b") as file:
                    file.write(b"Y")
            tree.checkout(commit)
            assert {data[:1] for data in content(tree.path).values()} == {b"X"}


def test_pins_and_links_are_laid_over(repo, cache):
    """Pinned bytes win, links point to the inputs, and both vanish when they are no longer asked for."""
    first, second = repo.commit("one", recipe="old", a="1"), repo.commit("two", recipe="new", a="2")
    (repo.dir / "data").mkdir()
    (repo.dir / "data" / "vocab").write_text("v")
    overlay = Overlay({"recipe.py": b"pinned", "tests/t.py": b""}, {"data": repo.dir / "data", "a.py": repo.dir})
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        for commit in (first, second):
            done = tree.checkout(commit, overlay)
            assert (done.path / "recipe.py").read_bytes() == b"pinned"
            assert (done.path / "data" / "vocab").read_text() == "v"
            assert done.files["recipe.py"] == layout.blob_id(b"pinned")
            assert (done.pinned, done.linked) == ({"recipe.py", "tests/t.py"}, {"data"})
            assert any("a.py" in note for note in done.notes)
        tree.checkout(second)
        assert content(tree.path) == {"recipe.py": b"new", "a.py": b"2"}
        for bad in (Overlay({"../x": b""}), Overlay({"/x": b""}), Overlay({".git/config": b""}),
                    Overlay(links={"d": repo.dir / "none"})):  # fmt: skip
            with pytest.raises(UsageError) as error:
                tree.checkout(second, bad)
            assert error.value.slug == "bad-overlay"
        with pytest.raises(UntestableError) as clash:
            tree.checkout(second, Overlay({"a.py/b": b""}))
        assert clash.value.slug == "unsafe-tree"
    assert (repo.dir / "data" / "vocab").read_text() == "v"


def test_submodules_are_empty_folders(repo, cache):
    """They are not fetched; a note says so, and what a run put into them goes."""
    inner = repo.commit("one", a="1")
    commit = repo.tree_of(("100644", "blob", b"a.py", b"1"), ("160000", "commit", b"sub", inner.encode()))
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        done = tree.checkout(commit)
        assert content(done.path) == {"a.py": b"1", "sub/": b""}
        assert "submodules" in done.notes[0]
        (done.path / "sub" / "stray").write_text("s")
        tree.checkout(commit)
        assert content(done.path) == {"a.py": b"1", "sub/": b""}


@pytest.mark.parametrize("name", [b"..", b".git", b".GIT", b"a/../../x", b"/abs", b"."])
def test_hostile_paths_are_refused(repo, cache, name):
    """Entries that no honest git writes make the commit untestable and write nothing."""
    commit = repo.tree_of(("100644", "blob", name, b"evil"))
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        with pytest.raises(UntestableError) as error:
            tree.checkout(commit)
        assert error.value.slug == "unsafe-tree"
        assert content(tree.path) == {}


def test_nothing_is_written_through_a_link_of_the_commit(repo, cache, tmp_path):
    """A link and a folder of one name would lead files outside."""
    repo.commit("one", a="1")
    target = tmp_path / "target"
    target.mkdir()
    inner = repo.git("rev-parse", "HEAD^{tree}")
    commit = repo.tree_of(("120000", "blob", b"dir", bytes(target)), ("40000", "tree", b"dir", inner.encode()))
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree, pytest.raises(UntestableError):
        tree.checkout(commit)
    assert list(target.iterdir()) == []


def test_build_outputs_stay_with_their_commit(repo, cache):
    """What a build made is kept for the same commit, goes with another one, and goes when a run changed it."""
    first, second = repo.commit("one", a="1"), repo.commit("two", a="2")
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        tree.checkout(first)
        (tree.path / "build").mkdir()
        (tree.path / "build" / "x.so").write_bytes(b"so")
        assert tree.adopt() == {"build/x.so"}
        assert tree.checkout(first).built == {"build/x.so"}
        assert (tree.path / "build" / "x.so").exists()
        assert tree.checkout(second).built == set()
        assert content(tree.path) == {"a.py": b"2"}
        (tree.path / "x.so").write_bytes(b"so")
        tree.adopt()
        (tree.path / "x.so").write_bytes(b"changed")
        assert tree.checkout(second).built == set()
        assert content(tree.path) == {"a.py": b"2"}


def test_users_do_not_share_a_folder(repo, cache):
    """Two at once get two folders; the first free one is used again."""
    commit = repo.commit("one", a="1")
    with Repository(repo.dir) as git:
        with Tree(git, cache=cache) as one, Tree(git, cache=cache) as two:
            assert one.path != two.path
            place = one.path
            one.checkout(commit)
            two.checkout(commit)
        with Tree(git, cache=cache) as again:
            assert again.path == place
            assert again.checkout(commit).written == 0


def test_the_longest_unused_folders_go_first(repo, cache):
    """Beyond the limit free trees are given up by age; one in use never is."""
    commit = repo.commit("one", a="x" * 200_000)
    with Repository(repo.dir) as git:
        trees = [Tree(git, cache=cache) for _ in range(3)]
        for tree in trees:
            tree.checkout(commit)
        for tree in (trees[1], trees[0]):
            tree.close()
            time.sleep(0.02)
        removed = Pool(cache / "trees", limit=500_000).trim()
        assert removed == [trees[1].path.parent]
        assert Pool(cache / "trees", limit=0).trim() == [trees[0].path.parent]
        assert trees[2].checkout(commit).written == 0
        trees[2].close()


def test_a_cache_that_cannot_be_written_is_one_clear_error(repo, tmp_path):
    """A file in the place of the folder."""
    (tmp_path / "file").write_text("")
    with Repository(repo.dir) as git, pytest.raises(UsageError) as error:
        Tree(git, cache=tmp_path / "file")
    assert error.value.slug == "cache-unwritable"


KILLED = """
import os, signal, sys
from pathlib import Path
from opguard_ci.worker.git import Repository
from opguard_ci.worker import tree
count = 0
put = tree.Tree._put
def dying(self, *arguments):
    global count
    count += 1
    if count == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return put(self, *arguments)
tree.Tree._put = dying
git = Repository(sys.argv[1])
held = tree.Tree(git, cache=Path(sys.argv[2]))
held.checkout(sys.argv[3])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("after", [1, 7, 999])
def test_after_kill_9_the_tree_is_made_anew_and_the_checkout_is_untouched(repo, cache, after):
    """Killed in the middle of writing, or with the folder in use: the next user gets a clean tree all the same."""
    first = odd_commit(repo)
    repo.put("pkg/a.py", "A = 3\n")
    second = repo.commit("two")
    repo.put("stash.me", "s")
    repo.git("stash", "-u")
    repo.put("dirty", "d")
    before = fingerprint(repo.dir)
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        tree.checkout(first)
    done = subprocess.run([sys.executable, "-c", KILLED, repo.dir, cache, second, str(after)], check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    with Repository(repo.dir) as git, Tree(git, cache=cache) as tree:
        got = tree.checkout(second)
        assert got.written == len(git.entries(second))
        assert (tree.path / "pkg" / "a.py").read_text() == "A = 3\n"
        assert len(content(tree.path)) == len(git.entries(second))
    assert fingerprint(repo.dir) == before
