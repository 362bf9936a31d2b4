from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from opguard_ci.errors import UsageError
from opguard_ci.guard import Project
from opguard_ci.reference import Reference, Wanted, code_digest, in_ci
from opguard_ci.store.golden import Blessing
from tests.gitrepo import GitRepo
from tests.trace.folders import training_run, write

KEY, OTHER = "k" * 16, "o" * 16
RECIPE = "recipe.py_train-00000000"


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    repo = GitRepo(tmp_path / "r")
    repo.commit("one", a="1")
    return repo


@pytest.fixture
def project(repo: GitRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("OPGUARD_CACHE", str(tmp_path / "cache"))
    with Project(repo.dir) as project:
        yield project


def bless(project: Project, key: str = KEY, when: str = "2026-01-01T00:00:00+00:00") -> str:
    """Write a golden for HEAD as it is; returns its commit."""
    head = project.repository.head()
    folder = project.root.parent / f"trace-{key}-{len(list(project.root.parent.iterdir()))}"
    write(folder, training_run(1, 5), environment={"key": key, "document": {}})
    code = code_digest(project.repository, head, project.goldens.folder)
    project.goldens.write(RECIPE, folder, Blessing("Ada", when, "why", head, code, "n"), {})
    return head


def choose(project: Project, **how: str) -> Reference:
    return project.references.choose(RECIPE, KEY, Wanted(**how))


def test_a_given_commit_decides(repo: GitRepo, project: Project) -> None:
    """Also where a golden of this environment exists."""
    bless(project)
    first = repo.git("rev-parse", "HEAD")
    repo.commit("two", a="2")
    assert choose(project, commit="HEAD~1") == Reference("commit", first)


def test_then_the_golden_of_this_environment(project: Project) -> None:
    """Whatever ``missing`` says."""
    bless(project)
    found = choose(project, missing="reference")
    assert found.kind == "golden"
    assert found.golden is not None and found.golden.key == KEY


def test_no_golden_at_all_fails(project: Project) -> None:
    """By default: a check that compares nothing must not pass."""
    found = choose(project)
    assert (found.kind, found.missing) == ("none", "fail")
    assert choose(project, missing="skip").missing == "skip"


def test_only_this_environment_is_missing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default: skipped with a sentence locally; in CI the golden's commit is run again."""
    commit = bless(project, OTHER)
    found = choose(project)
    assert (found.kind, found.missing) == ("none", "skip")
    assert "1 other environment" in found.why and KEY in found.why
    monkeypatch.setenv("CI", "true")
    assert choose(project).commit == commit
    assert choose(project, missing="fail").missing == "fail"


def test_a_golden_of_another_version_does_not_count(project: Project) -> None:
    """It is as if this environment had none, and the reason is said."""
    bless(project)
    file = project.goldens.path(RECIPE, KEY)
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 99'))
    found = choose(project)
    assert (found.kind, found.missing) == ("none", "skip")
    assert "schema" in found.why


def test_the_newest_golden_is_run_again(repo: GitRepo, project: Project) -> None:
    """Of several other environments, the one that was blessed last."""
    bless(project, "a" * 16, "2026-01-02T00:00:00+00:00")
    repo.commit("two", a="2")
    newest = bless(project, "b" * 16, "2026-01-03T00:00:00+00:00")
    bless(project, "c" * 16, "2026-01-01T00:00:00+00:00")
    assert choose(project, missing="reference").commit == newest


def test_a_golden_whose_commit_is_gone_is_found_by_its_tree(repo: GitRepo, project: Project) -> None:
    """The commit was squashed with the one that added the golden, and the old objects were collected."""
    gone = bless(project, OTHER)
    repo.put("golden/marker", "x")
    repo.git("add", "-A")
    repo.git("commit", "-q", "--amend", "-m", "squashed")
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "-q", "--prune=now")
    squashed = repo.git("rev-parse", "HEAD")
    assert squashed != gone
    with Project(repo.dir) as fresh:
        assert choose(fresh, missing="reference").commit == squashed


def test_without_a_golden_the_merge_base_is_taken(repo: GitRepo, project: Project) -> None:
    """With reference_branch, which may only exist on the remote."""
    base = repo.git("rev-parse", "HEAD")
    repo.git("update-ref", "refs/remotes/origin/main", base)
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit("two", a="2")
    assert choose(project, missing="reference").commit == base
    repo.git("branch", "-q", "-D", "main")
    found = choose(project, missing="reference")
    assert found.commit == base
    assert "merge base with main" in found.why


def test_nothing_is_left(repo: GitRepo, project: Project) -> None:
    """No golden, no branch: that fails; a golden of another environment is still better than nothing."""
    repo.git("branch", "-q", "-m", "trunk")
    assert choose(project, missing="reference").missing == "fail"
    bless(project, OTHER)
    file = project.goldens.path(RECIPE, OTHER)
    document = {**json.loads(file.read_text()), "commit": "f" * 40, "code": "e" * 40}
    file.write_text(json.dumps(document))
    found = choose(project, missing="reference")
    assert found.kind == "golden"
    assert found.golden is not None and found.golden.key == OTHER


@pytest.mark.parametrize("commit", ["nowhere", "--all", ""])
def test_an_unknown_commit(project: Project, commit: str) -> None:
    """Is a usage error."""
    with pytest.raises(UsageError) as caught:
        choose(project, commit=commit)
    assert caught.value.slug == "unknown-commit"


def test_a_shallow_clone_says_so(repo: GitRepo, tmp_path: Path) -> None:
    """For a commit that was cut off, and for a merge base that cannot be known."""
    repo.commit("two", a="2")
    repo.commit("three", a="3")
    repo.git("clone", "-q", "--depth", "1", "-b", "main", f"file://{repo.dir}", str(tmp_path / "shallow"))
    with Project(tmp_path / "shallow") as project:
        with pytest.raises(UsageError) as caught:
            choose(project, commit="HEAD~1")
        assert caught.value.slug == "shallow-clone"


def test_a_golden_cannot_name_an_option_or_a_branch(project: Project) -> None:
    """Goldens may come from a stranger's pull request: only full hashes are looked up."""
    bless(project, OTHER)
    file = project.goldens.path(RECIPE, OTHER)
    for commit in ("HEAD", "--output=x", "main"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "commit": commit, "code": "e" * 40}))
        (golden,) = project.goldens.of(RECIPE)
        assert project.references.commit_of(golden) is None


def test_blessing_changes_no_code_digest(repo: GitRepo, project: Project) -> None:
    """The goldens' folder is left out, wherever it lies; anything else counts."""
    digests = {}
    for place in ("golden", "deep/er/golden"):
        before = code_digest(project.repository, repo.git("rev-parse", "HEAD"), repo.dir / place)
        repo.put(f"{place}/r/k.json", "{}")
        digests[place] = code_digest(project.repository, repo.commit("blessed"), repo.dir / place)
        assert digests[place] == before
    repo.put("deep/other", "x")
    assert (
        code_digest(project.repository, repo.commit("more"), repo.dir / "deep/er/golden") != digests["deep/er/golden"]
    )


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("1", True), ("", False), ("false", False)])
def test_ci(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    """Providers set CI; somebody who sets it to false does not mean yes."""
    monkeypatch.setenv("CI", value)
    assert in_ci() is expected
