"""The facade on git: what it answers, what it refuses, and that it leaves the repository as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_ci.errors import UsageError
from opguard_ci.worker.git import Repository
from opguard_ci.worker.history import (
    changed_paths,
    commits_between,
    describe,
    first_parents,
    is_ancestor,
    merge_base,
)
from tests.gitrepo import GitRepo, fingerprint


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    return GitRepo(tmp_path / "repo")


def opened(repo: GitRepo, **options: Path) -> Repository:
    return Repository(repo.dir, **options)


class refusal:
    """Expects a UsageError with this slug, whose sentence holds this text."""

    def __init__(self, slug: str, text: str = "") -> None:
        self.slug, self.text = slug, text

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, tb: object) -> bool:
        assert isinstance(error, UsageError), error
        assert (error.slug, self.text in error.message) == (self.slug, True), error.message
        return True


def test_commits_are_named_by_full_hashes(repo):
    """Branches, tags, short hashes and HEAD~1 resolve; root, head, branch and tree are told."""
    first, second = repo.commit("one", a="1"), repo.commit("two", a="2")
    repo.git("tag", "-a", "v1", "-m", "tag", first)
    with Repository(repo.dir) as git:
        assert [git.resolve(x) for x in ("main", "v1", second[:10], "HEAD~1")] == [second, first, second, first]
        assert (git.root, git.head(), git.branch()) == (repo.dir, second, "main")
        assert git.tree(first) == repo.git("rev-parse", f"{first}^{{tree}}")
    repo.git("checkout", "-q", "--detach", first)
    with Repository(repo.dir / ".git" / "..") as git:
        assert (git.head(), git.branch()) == (first, None)


def test_from_a_subfolder_and_a_linked_worktree(repo, tmp_path):
    """The root is the working tree's, and worktrees share their identity."""
    commit = repo.commit("one", a="1")
    (repo.dir / "deep" / "er").mkdir(parents=True)
    repo.git("worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    with Repository(repo.dir / "deep" / "er") as git, Repository(tmp_path / "linked") as linked:
        assert (git.root, linked.root) == (repo.dir, tmp_path / "linked")
        assert git.identity == linked.identity
        assert linked.head() == commit
        assert linked.read(commit)[0] == "commit"


def test_requests_that_make_no_sense_are_refused_with_what_to_do(repo, tmp_path):
    """Each error has its slug."""
    (tmp_path / "plain").mkdir()
    with refusal("not-a-repository"):
        Repository(tmp_path / "plain")
    with refusal("not-a-repository"):
        Repository(tmp_path / "nowhere")
    with opened(repo) as git, refusal("unborn-head", "make one first"):
        git.head()
    repo.commit("one")
    subprocess.run(["git", "clone", "-q", "--bare", repo.dir, tmp_path / "bare.git"], check=True)
    with refusal("bare-repository"):
        Repository(tmp_path / "bare.git")
    with opened(repo) as git:
        for revision in ("nonsense", "", "--help", "HEAD~7", "a" * 40, "x\0y"):
            with refusal("unknown-commit"):
                git.resolve(revision)
        with refusal("missing-object", "fsck"):
            git.read("a" * 40)
        assert git.resolve("HEAD"), "a failed read leaves the repository usable"


def test_an_ambiguous_name_is_called_so(repo):
    """Among so many commits two begin with the same four digits."""
    feed = "".join(
        f"commit refs/heads/n{n}\ncommitter C <c@example.invalid> {1_700_000_000 + n} +0000\ndata 1\nx\n"
        for n in range(1500)
    )
    repo.git("fast-import", "--quiet", stdin=feed.encode())
    commits = repo.git("for-each-ref", "--format=%(objectname)").split()
    starts = [commit[:4] for commit in commits]
    short = next(start for start in starts if starts.count(start) > 1)
    with opened(repo) as git, refusal("ambiguous-commit", "more digits"):
        git.resolve(short)


def test_a_shallow_clone_says_how_to_deepen(repo, tmp_path):
    """What lies behind the cut is not called unknown, and no common ancestor is guessed."""
    first = repo.commit("one", a="1")
    repo.git("checkout", "-q", "-b", "side")
    repo.commit("side", b="1")
    repo.git("checkout", "-q", "main")
    repo.commit("two", a="2")
    third = repo.commit("three", a="3")
    url = f"file://{repo.dir}"
    subprocess.run(["git", "clone", "-q", "--depth", "1", "--no-single-branch", url, tmp_path / "s"], check=True)
    with Repository(tmp_path / "s") as git:
        for revision in ("HEAD~1", first):
            with refusal("shallow-clone", "fetch-depth: 0"):
                git.resolve(revision)
        side = git.resolve("origin/side")
        with refusal("shallow-clone"):
            merge_base(git, side, third)
        with refusal("shallow-clone"):
            is_ancestor(git, side, third)
        with refusal("shallow-clone"):
            commits_between(git, side, third)
        assert is_ancestor(git, third, third)
        assert merge_base(git, third, third) == third


def test_without_a_git_program_there_is_one_clear_error(tmp_path):
    """GitPython raises at import; the user reads a sentence."""
    code = (
        "from opguard_ci.errors import UsageError\nfrom opguard_ci.worker.git import Repository\n"
        "try:\n    Repository('.')\nexcept UsageError as error:\n    print(error.slug)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PATH": str(tmp_path)}, capture_output=True, text=True,
                          check=False, cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.stdout == "git-missing\n", done.stderr


def test_trees_and_blobs_are_read_as_stored(repo):
    """Modes, odd names and raw bytes, in git's order; the same from ls-tree."""
    repo.put("run.sh", b"#!/bin/sh\n", 0o755)
    repo.put("a b/\u00fc\nx.txt", b"one\r\ntwo")
    repo.put(os.fsdecode(b"bad\xff\xfe"), b"\x00")
    (repo.dir / "link").symlink_to("run.sh")
    repo.put(".gitattributes", "* text eol=lf export-subst\n")
    commit = repo.commit("odd")
    listed = subprocess.run(["git", "ls-tree", "-r", "-z", commit], cwd=repo.dir, capture_output=True, check=True)
    with opened(repo) as git:
        entries = git.entries(commit)
        shown = b"".join(b"%06o %s %s\t%s\0" % (e.mode, e.kind.encode(), e.id.encode(), e.path) for e in entries)
        assert shown == listed.stdout
        content = {e.path: git.blob(e.id) for e in entries}
        many = dict(git.blobs([e.id for e in entries]))
        assert many == {e.id: content[e.path] for e in entries}
    assert content[b"link"] == b"run.sh"
    assert content[b"bad\xff\xfe"] == b"\x00"


def test_many_large_blobs_do_not_block(repo):
    """More requests than a pipe holds, answers larger than a pipe."""
    for number in range(600):
        repo.put(f"f{number}", bytes([number % 256]) * (200_000 if number % 50 == 0 else 7) + str(number).encode())
    commit = repo.commit("many")
    with opened(repo) as git:
        ids = [entry.id for entry in git.entries(commit)]
        assert [id_ for id_, _ in git.blobs(ids * 2)] == ids * 2


def test_no_process_is_left(repo):
    """The object reader ends with close and starts again when needed."""
    commit = repo.commit("one", a="1")
    git = opened(repo)
    git.tree(commit)
    process = git._reader._process
    git.close()
    assert process.returncode is not None
    assert git.tree(commit)
    git.close()


def test_the_digest_of_paths_follows_only_these_paths(repo):
    """A file, a folder and a pattern; no paths means the whole tree."""
    repo.put("src/m.py", "1")
    repo.put("src2/m.py", "1")
    repo.put("conf/a.yaml", "1")
    first = repo.commit("one", recipe="r")
    repo.put("README", "text")
    repo.put("src2/m.py", "2")
    second = repo.commit("docs")
    repo.put("conf/a.yaml", "2")
    third = repo.commit("conf")
    with opened(repo) as git:
        digests = [git.tree_hash(c, ["src/", "recipe.py", "conf/*.yaml"]) for c in (first, second, third)]
        assert digests[0] == digests[1] != digests[2]
        assert git.tree_hash(first) == git.tree(first) != git.tree_hash(second)


def test_dirt_is_seen_without_touching_the_index(repo):
    """Changed, staged, removed and untracked files count, ignored ones do not; filters and monitors do not run."""
    repo.put(".gitignore", "*.log\n")
    repo.put(".gitattributes", "*.bin filter=trap\n")
    repo.put("x.bin", "x")
    repo.commit("one", a="1", b="2")
    with opened(repo) as git:
        assert git.is_clean()
        for key in ("clean", "smudge", "process"):
            repo.git("config", f"filter.trap.{key}", f"touch {repo.dir}/trapped; cat")
        repo.git("config", "core.fsmonitor", f"touch {repo.dir}/trapped; false")
    repo.put("a.py", "changed")
    repo.put("new file\n.txt", "n")
    repo.put("x.log", "ignored")
    os.utime(repo.dir / "b.py", ns=(1, 1))
    os.utime(repo.dir / "x.bin", ns=(1, 1))
    before = fingerprint(repo.dir)
    with opened(repo) as git:
        assert sorted(git.dirty()) == [b"a.py", b"new file\n.txt"]
    assert fingerprint(repo.dir) == before


def history(repo: GitRepo) -> dict[str, str]:
    made = {"base": repo.commit("base", a="1")}
    repo.git("checkout", "-q", "-b", "side")
    made["side"] = repo.commit(
        "side: \u00fcber\n\nBody.\n\nOpguard-Rebaseline: recipe-1\nOpguard-Rebaseline: two", b="1"
    )
    repo.git("checkout", "-q", "main")
    made["main"] = repo.commit("main", a="2")
    repo.clock += 60
    repo.git("merge", "-q", "--no-ff", "side", "-m", "merge")
    made["merge"] = repo.git("rev-parse", "HEAD")
    made["tip"] = repo.commit("tip\n\nNo trailer here: Opguard-Rebaseline: x", c="1")
    return made


def test_the_graph_between_two_commits(repo):
    """Parents before children, with trees, dates, subjects and declared re-baselines."""
    made = history(repo)
    with opened(repo) as git:
        commits = {commit.hash: commit for commit in commits_between(git, made["base"], made["tip"])}
        order = list(commits)
        assert set(order) == {made[name] for name in ("side", "main", "merge", "tip")}
        assert order[-2:] == [made["merge"], made["tip"]]
        merge, side = commits[made["merge"]], commits[made["side"]]
        assert merge.parents == (made["main"], made["side"])
        assert (side.subject, side.rebaselines) == ("side: \u00fcber", ("recipe-1", "two"))
        assert side.tree == git.tree(made["side"])
        assert side.author_date == 1_700_000_120
        assert commits[made["tip"]].rebaselines == ()
        assert describe(git, [made["tip"], made["base"]])[1].subject == "base"
        assert describe(git, []) == []
        assert first_parents(git, made["base"], made["tip"]) == [made[n] for n in ("main", "merge", "tip")]
        assert commits_between(git, made["tip"], made["base"]) == []


def test_who_descends_from_whom(repo):
    """Ancestors, common ancestors, and histories that share nothing."""
    made = history(repo)
    repo.git("checkout", "-q", "--orphan", "other")
    orphan = repo.commit("orphan", z="1")
    with opened(repo) as git:
        assert is_ancestor(git, made["side"], made["tip"])
        assert not is_ancestor(git, made["side"], made["main"])
        assert merge_base(git, made["side"], made["main"]) == made["base"]
        assert merge_base(git, orphan, made["main"]) is None
        with refusal("unknown-commit"):
            is_ancestor(git, "f" * 40, made["main"])


def test_changed_paths(repo):
    """Against the first parent, another parent, or nothing; textconv, external diffs and renames play no part."""
    made = history(repo)
    repo.git("config", "diff.external", "false")
    with opened(repo) as git:
        assert changed_paths(git, made["merge"]) == [b"b.py"]
        assert changed_paths(git, made["merge"], made["side"]) == [b"a.py"]
        assert changed_paths(git, made["base"]) == [b"a.py"]


def test_variables_of_a_hook_do_not_lead_astray(repo, tmp_path, monkeypatch):
    """Inside of a git hook GIT_DIR and others name the hook's repository, not the one that was asked for."""
    commit = repo.commit("one", a="1")
    other = GitRepo(tmp_path / "other")
    other.commit("other")
    for name, value in (("GIT_DIR", other.dir / ".git"), ("GIT_INDEX_FILE", other.dir / ".git/index"),
                        ("GIT_WORK_TREE", other.dir), ("GIT_EXTERNAL_DIFF", "false")):  # fmt: skip
        monkeypatch.setenv(name, str(value))
    with opened(repo) as git:
        assert git.head() == commit
        assert git.entries(commit)[0].path == b"a.py"
        assert git.is_clean()


def test_replaced_objects_are_not_followed(repo):
    """``git replace`` changes what a hash shows; a proof by hash must not."""
    first, second = repo.commit("one", a="1"), repo.commit("two", a="2")
    repo.git("replace", second, first)
    with opened(repo) as git:
        assert git.tree(second) != git.tree(first)


def test_a_sha256_repository(tmp_path):
    """Longer hashes; GitPython's own object reader refuses these."""
    repo = GitRepo(tmp_path / "repo", "--object-format=sha256")
    commit = repo.commit("one", a="1")
    with opened(repo) as git:
        assert (len(git.head()), git.object_format) == (64, "sha256")
        assert [git.blob(entry.id) for entry in git.entries(commit)] == [b"1"]


def test_a_partial_clone_is_completed_in_the_cache(repo, tmp_path):
    """All missing blobs come in one fetch; the clone's own .git stays byte for byte as it was."""
    for number in range(5):
        repo.put("data.txt", f"version {number}")
        repo.commit(f"number {number}", m=f"x = {number}")
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("config", "uploadpack.allowAnySHA1InWant", "true")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--filter=blob:none", f"file://{repo.dir}", clone], check=True)
    before = fingerprint(clone)
    with Repository(clone, cache=tmp_path / "cache") as git:
        assert git.promisor == "origin"
        commits = [c.hash for c in commits_between(git, git.resolve("HEAD~4"), git.head())]
        assert git.prefetch(commits) == 6, "two files at three commits: HEAD's were checked out"
        assert git.prefetch(commits) == 0
        (repo.dir / ".git").rename(repo.dir / "gone")
        for number, commit in enumerate(commits, 1):
            assert [git.blob(e.id) for e in git.entries(commit)] == [b"version %d" % number, b"x = %d" % number]
        assert len(list((tmp_path / "cache" / "objects" / git.identity / "pack").glob("*.pack"))) == 1
        with refusal("missing-object", "partial clone"):
            git.prefetch([git.resolve("HEAD~4")])
    assert fingerprint(clone) == before


def test_nothing_in_the_repository_changes(repo):
    """Every call of the facade: checkout, index, stash and .git keep bytes and time stamps; no hook runs."""
    made = history(repo)
    repo.put("a.py", "stashed")
    repo.git("stash")
    repo.put("a.py", "dirty")
    repo.git("add", "a.py")
    for hook in ("post-index-change", "reference-transaction", "post-checkout"):
        repo.put(f".git/hooks/{hook}", f"#!/bin/sh\ntouch {repo.dir}/hooked\n", 0o755)
    os.utime(repo.dir / "b.py")
    before = fingerprint(repo.dir)
    with opened(repo) as git:
        git.dirty()
        git.resolve("main")
        git.branch()
        commits = commits_between(git, made["base"], made["tip"])
        for commit in commits:
            changed_paths(git, commit.hash)
            list(git.blobs(entry.id for entry in git.entries(commit.hash)))
            git.tree_hash(commit.hash, ["a.py"])
        merge_base(git, made["side"], made["main"])
        is_ancestor(git, made["side"], made["main"])
        git.prefetch([made["tip"]])
    assert fingerprint(repo.dir) == before
