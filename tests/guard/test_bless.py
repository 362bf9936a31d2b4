from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.bless import BlessOptions, bless
from opguard_ci.errors import OpguardError, UntestableError, UsageError
from opguard_ci.guard import Project
from opguard_ci.jobs import Asked, jobs_of
from tests.guarded import UNSTABLE, Guarded

pytestmark = pytest.mark.usefixtures("own_cache", "local")


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def blessed(repo: Guarded, *targets: str, reason: str = "why", allow_nonfinite: bool = False) -> list[dict[str, Any]]:
    with Project(repo.dir) as project:
        jobs = jobs_of(project, targets or [repo.target], str(repo.dir), Asked())
        return bless(project, jobs, BlessOptions(reason, allow_nonfinite))


def refusal(repo: Guarded, **how: Any) -> OpguardError:
    with pytest.raises(OpguardError) as caught:
        blessed(repo, **how)
    assert not (repo.dir / "golden").exists()
    return caught.value


def test_never_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A golden is accepted by a person."""
    monkeypatch.setenv("CI", "true")
    error = refusal(Guarded(tmp_path / "r"))
    assert (type(error), error.slug) == (UsageError, "bless-in-ci")


def test_never_without_a_reason(tmp_path: Path) -> None:
    """Blanks are none."""
    assert refusal(Guarded(tmp_path / "r"), reason="  ").slug == "no-reason"


def test_never_with_changes(tmp_path: Path) -> None:
    """Changed and untracked files are named; a golden must belong to a commit."""
    repo = Guarded(tmp_path / "r")
    repo.put("new file.py", "")
    error = refusal(repo)
    assert error.slug == "dirty-tree"
    assert "new file.py" in error.message


def test_what_does_not_repeat_itself_is_not_blessed(tmp_path: Path) -> None:
    """Nor is any other target of the same call."""
    repo = Guarded(tmp_path / "r")
    repo.put("recipe2.py", (repo.dir / "recipe.py").read_text().replace("disturb()", "0"))
    repo.change(disturb=UNSTABLE)
    results = blessed(repo, "recipe2.py:train", "recipe.py:train")
    assert [(each["target"], each["verdict"]) for each in results] == [("recipe.py:train", "unstable")]
    assert results[0]["first_divergence"] is not None
    assert not (repo.dir / "golden").exists()


def test_nan_is_not_blessed_unless_it_belongs_there(tmp_path: Path) -> None:
    """The message names the step and the value; allowed ones are written into the golden."""
    repo = Guarded(tmp_path / "r")
    repo.change(disturb='return torch.tensor(float("inf"))')
    error = refusal(repo)
    assert (type(error), error.slug) == (UntestableError, "nonfinite-contract")
    assert "step 0: loss" in error.message
    (result,) = blessed(repo, allow_nonfinite=True)
    assert "step 0: loss" in json.loads((repo.dir / result["path"]).read_text())["nonfinite"]


def test_what_cannot_run_is_not_blessed(tmp_path: Path) -> None:
    """The user's traceback comes along."""
    repo = Guarded(tmp_path / "r")
    repo.change(disturb='raise RuntimeError("no disk")')
    error = refusal(repo)
    assert isinstance(error, UntestableError)
    assert (error.slug, "no disk" in error.traceback) == ("target-raised", True)


def test_blessing_again_tells_old_and_new(tmp_path: Path) -> None:
    """The same numbers have the same digest, others another; nothing is deleted."""
    repo = Guarded(tmp_path / "r")
    (first,) = blessed(repo, reason="first")
    (same,) = blessed(repo, reason="again")
    assert (first["old"], same["old"], same["new"]) == (None, first["new"], first["new"])
    repo.change(eps="1e-3")
    (changed,) = blessed(repo, reason="better eps")
    assert changed["old"] == first["new"] != changed["new"]
    document = json.loads((repo.dir / changed["path"]).read_text())
    assert [entry["why"] for entry in document["history"]] == ["first", "again"]
    assert document["tree"] == repo.git("rev-parse", "HEAD^{tree}")
    assert len(list((repo.dir / "golden" / "objects").iterdir())) == 2
