from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.bless import BlessOptions, bless
from opguard_ci.errors import UsageError
from opguard_ci.guard import Project, check
from opguard_ci.jobs import Asked, jobs_of
from opguard_ci.reference import Wanted
from opguard_ci.worker.cache import cache_folder
from tests.gitrepo import GitRepo, fingerprint
from tests.guarded import UNSTABLE, Guarded

pytestmark = pytest.mark.usefixtures("own_cache", "local")


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def checked(repo: Guarded, commit: str | None = None, missing: str | None = None) -> dict[str, Any]:
    with Project(repo.dir) as project:
        (job,) = jobs_of(project, [repo.target], str(repo.dir), Asked())
        return check(project, job, Wanted(commit, missing)).document


def blessed(repo: Guarded, reason: str = "it is right") -> dict[str, Any]:
    with Project(repo.dir) as project:
        (result,) = bless(project, jobs_of(project, [repo.target], str(repo.dir), Asked()), BlessOptions(reason))
        return result


def as_if_elsewhere(repo: GitRepo) -> Path:
    """Rename the one golden to another environment's."""
    (file,) = (repo.dir / "golden").glob("*/*.json")
    key = file.stem
    moved = file.rename(file.with_name(f"{'0' * 16}.json"))
    moved.write_text(moved.read_text().replace(f'"key": "{key}"', f'"key": "{"0" * 16}"'))
    return moved


def test_a_change_is_found_against_a_commit(tmp_path: Path) -> None:
    """With operator and argument; the reference is measured once, and kept."""
    repo = Guarded(tmp_path / "r")
    repo.change("another eps", eps="1e-3")
    document = checked(repo, "HEAD~1")
    assert document["verdict"] == "diverged"
    assert document["first_divergence"]["op"] == "aten.native_layer_norm.default"
    assert document["recipe"].startswith("recipe.py_train-")
    tensor = document["first_divergence"]["tensors"][0]
    assert (tensor["name"], tensor["shape"], tensor["elements"]) == ("output 0", [4, 8], 32)
    assert tensor["different"] > 0
    assert 0 < tensor["median_ulp"] <= tensor["max_ulp"]
    reference = document["reference"]
    assert (reference["kind"], reference["commit"], reference["cached"]) == ("commit", repo.first, False)
    assert document["candidate"]["commit"] == repo.git("rev-parse", "HEAD")
    assert checked(repo, repo.first[:10])["reference"]["cached"]


def test_a_refactor_passes_and_a_dirty_tree_is_labelled(tmp_path: Path) -> None:
    """What is compared is the working tree as it is, and its label says that it is no commit."""
    repo = Guarded(tmp_path / "r")
    repo.net(before="# moved\n\n")
    document = checked(repo, "HEAD")
    assert document["verdict"] == "identical"
    assert document["candidate"]["commit"] == f"{repo.first}+dirty"


def test_a_golden_round_trip(tmp_path: Path) -> None:
    """Blessed, the same code is identical; another eps diverges from the golden, which is named with its reason."""
    repo = Guarded(tmp_path / "r")
    result = blessed(repo)
    assert (result["verdict"], result["old"], result["commit"]) == ("ok", None, repo.first)
    document = checked(repo)
    assert document["verdict"] == "identical"
    assert document["candidate"]["commit"] == repo.first  # a golden that is not committed yet is no change
    repo.change(eps="1e-3")
    document = checked(repo)
    assert document["verdict"] == "diverged"
    assert document["first_divergence"]["op"] == "aten.native_layer_norm.default"
    reference = document["reference"]
    assert (reference["kind"], reference["commit"], reference["why"]) == ("golden", repo.first, "it is right")
    assert reference["who"] == "Case <case@example.invalid>" or reference["who"].endswith(">")


def test_a_declared_change_is_said(tmp_path: Path) -> None:
    """The trailer of a commit since the reference names the recipe; the verdict stays what it is."""
    repo = Guarded(tmp_path / "r")
    repo.net(eps="1e-3")
    commit = repo.commit(f"Better eps\n\nOpguard-Rebaseline: {checked(repo, 'HEAD')['recipe']}")
    document = checked(repo, "HEAD~1")
    assert (document["verdict"], document["declared"]) == ("diverged", [commit])
    assert commit[:12] in document["notes"][-1]


def test_what_does_not_repeat_itself_is_unstable(tmp_path: Path) -> None:
    """Not diverged: nothing follows from a difference to the reference. Its own two runs are shown."""
    repo = Guarded(tmp_path / "r")
    repo.change(disturb=UNSTABLE)
    document = checked(repo, "HEAD~1")
    assert document["verdict"] == "unstable"
    assert document["first_divergence"] is not None
    assert "does not repeat itself" in document["notes"][-1]


def test_without_events_the_goldens_commit_is_run_again(tmp_path: Path) -> None:
    """Large events are in no clone: the operator is found all the same."""
    repo = Guarded(tmp_path / "r")
    blessed(repo)
    shutil.rmtree(repo.dir / "golden" / "objects")
    repo.change(eps="1e-3")
    document = checked(repo)
    assert document["verdict"] == "diverged"
    assert document["first_divergence"]["op"] == "aten.native_layer_norm.default"
    assert "was run again" in document["notes"][0]


def test_another_environments_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped locally; in CI its commit is run here, so that only code can differ; without a commit, what differs may
    be the environment, and the verdict says so.
    """
    repo = Guarded(tmp_path / "r")
    blessed(repo)
    file = as_if_elsewhere(repo)
    repo.change(eps="1e-3")
    document = checked(repo)
    assert (document["verdict"], document["missing"]) == ("no-reference", "skip")
    monkeypatch.setattr("opguard_ci.reference.in_ci", lambda: True)  # a variable would ask for other servers
    document = checked(repo)
    assert (document["verdict"], document["reference"]["kind"]) == ("diverged", "commit")
    assert document["reference"]["commit"] == repo.first
    file.write_text(file.read_text().replace(repo.first, "f" * 40).replace('"code": "', '"code": "0'))
    repo.git("branch", "-q", "-m", "trunk")
    document = checked(repo)
    assert (document["verdict"], document["reference"]["kind"]) == ("environment", "golden")
    assert document["first_divergence"] is None
    repo.change(eps="1e-5")
    assert checked(repo)["verdict"] == "identical"


def test_a_candidate_that_cannot_run(tmp_path: Path) -> None:
    """Is untestable, with the user's traceback."""
    repo = Guarded(tmp_path / "r")
    repo.change(disturb='raise RuntimeError("no disk")')
    document = checked(repo, "HEAD~1")
    assert document["verdict"] == "untestable"
    assert (document["error"]["side"], document["error"]["slug"]) == ("candidate", "target-raised")
    assert "no disk" in document["error"]["traceback"]


def test_a_difference_before_the_end_counts(tmp_path: Path) -> None:
    """A run that breaks off after another value is diverged: that is what there is to mend first."""
    repo = Guarded(tmp_path / "r")
    breaks = "if CALLS.append(1) or len(CALLS) > 1: raise RuntimeError"
    repo.change(eps="1e-3", before="CALLS = []\n", disturb=breaks)
    assert checked(repo, "HEAD~1")["verdict"] == "diverged"
    repo.change(before="CALLS = []\n", disturb=breaks)
    assert checked(repo, repo.first)["verdict"] == "untestable"


@pytest.mark.parametrize(
    ("disturb", "slug"),
    [
        ('raise RuntimeError("no disk")', "target-raised"),
        ("time.sleep(60)", "timeout"),
        ("os.kill(os.getpid(), 11)", "crashed"),
        ("os._exit(0)", "crashed"),
    ],
)
def test_a_reference_that_cannot_run(tmp_path: Path, disturb: str, slug: str) -> None:
    """It raises, hangs beyond the recipe's own timeout, or dies: untestable, and it is said whose fault that is."""
    repo = Guarded(tmp_path / "r", options=", timeout=2")
    repo.change("broken", disturb=disturb)
    repo.change("mended")
    document = checked(repo, "HEAD~1")
    assert document["verdict"] == "untestable"
    assert (document["error"]["side"], document["error"]["slug"]) == ("reference", slug)


def test_a_recipe_that_the_commit_lacks(tmp_path: Path) -> None:
    """The working tree's is laid over, and that is said."""
    repo = Guarded(tmp_path / "r")
    repo.git("rm", "-q", "--cached", "recipe.py")
    kept = (repo.dir / "recipe.py").read_text()
    (repo.dir / "recipe.py").unlink()
    without = repo.commit("no recipe yet")
    repo.put("recipe.py", kept)
    document = checked(repo, without)
    assert document["verdict"] == "identical"
    assert any("laid over" in note for note in document["notes"])


def test_awkward_names_and_a_detached_head(tmp_path: Path) -> None:
    """A path with spaces and other letters, in a checkout that stands on no branch."""
    repo = Guarded(tmp_path / "mein répo", file="tests mit räten/rezept β.py")
    repo.change(eps="1e-3")
    repo.git("checkout", "-q", "--detach")
    document = checked(repo, "HEAD~1")
    assert document["verdict"] == "diverged"
    assert document["target"] == "tests mit räten/rezept β.py:train"
    assert blessed(repo)["path"].isascii()
    assert checked(repo)["verdict"] == "identical"


def test_an_unborn_branch(tmp_path: Path) -> None:
    """A repository without a commit has nothing to compare with."""
    repo = Guarded(tmp_path / "r")
    repo.git("checkout", "-q", "--orphan", "empty")
    with pytest.raises(UsageError) as caught:
        checked(repo, "HEAD")
    assert caught.value.slug == "unborn-head"


def test_the_users_checkout_stays_as_it_was(tmp_path: Path) -> None:
    """Working tree, index and .git, byte for byte and to the time of change."""
    repo = Guarded(tmp_path / "r")
    repo.change(eps="1e-3")
    repo.net(eps="1e-4")
    before = fingerprint(repo.dir)
    checked(repo, "HEAD~1")
    assert fingerprint(repo.dir) == before


def test_objects_may_lie_in_a_folder_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``objects`` in [tool.opguard] takes the events that are too large; else the cache does."""
    monkeypatch.setattr("opguard_ci.store.golden.MAX_COMMITTED", 10)
    repo = Guarded(tmp_path / "r", config='objects = "../events"')
    blessed(repo)
    assert len(list((tmp_path / "events").iterdir())) == 1
    assert checked(repo)["verdict"] == "identical"
    other = Guarded(tmp_path / "other")
    blessed(other)
    assert len(list((cache_folder() / "objects").iterdir())) == 1
    assert not (other.dir / "golden" / "objects").exists()
