"""The demo's git history."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from opguard_ci.demo.changes import FAULTS
from opguard_ci.demo.history import build


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("seed", range(len(FAULTS)))
def test_every_seed_makes_a_history_with_one_fault(seed: int, tmp_path: Path):
    """The planted commit changes the fault's file alone; there are a merge and a commit that cannot be imported."""
    history = build(tmp_path, seed)
    assert history.change is FAULTS[seed % len(FAULTS)]
    changed = git(tmp_path, "show", "--format=", "--name-only", history.planted).split()
    assert changed == [history.change.file]
    commits = git(tmp_path, "rev-list", "HEAD").split()
    assert len(commits) == history.num_commits >= 12
    assert commits[0] == history.last
    assert commits[-1] == history.first
    assert history.planted in commits[:-1]
    assert len(git(tmp_path, "rev-list", "--merges", "HEAD").split()) == 1
    assert "import torhc" in git(tmp_path, "log", "-p", "--format=")
    for file in tmp_path.rglob("*.py"):
        ast.parse(file.read_text())


def test_a_seed_always_makes_the_same_history(tmp_path: Path):
    """Hashes do not depend on the machine's git configuration, its clock or the user."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert build(tmp_path / "one", 3).planted == build(tmp_path / "two", 3).planted
