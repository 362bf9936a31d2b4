"""The options of ``opguard bisect`` that look closer at what the commit changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import opguard, opguard_json
from tests.guarded import Guarded

pytestmark = pytest.mark.usefixtures("shared_servers")


@pytest.fixture
def repo(tmp_path: Path) -> Guarded:
    """Its second commit changes eps, its third a comment."""
    repo = Guarded(tmp_path / "r", config='recipes = ["recipe.py:train"]')
    repo.change("another eps", eps="1e-3")
    repo.change("a comment", eps="1e-3", before="# more\n")
    return repo


def test_a_window_and_a_reproducer(repo: Guarded) -> None:
    """The search goes by the contract of all steps; operators are recorded in the window, and the operator of the
    change is left as a script that gives both results here.
    """
    culprit = repo.git("rev-parse", "HEAD~1")
    words = ("bisect", "--good", repo.first, "--bad", "HEAD", "--repro", "repro")
    code, found = opguard_json(*words, "--from-step", "0", "--to-step", "0", cwd=repo.dir)
    assert (code, found["verdict"], found["first_bad"]) == (0, "found", culprit)
    assert (found["divergence"]["op"], found["divergence"]["detail"]) == (
        "aten.native_layer_norm.default",
        "eps 1e-05 -> 0.001",
    )
    assert any("from step 0 to step 0 only" in note for note in found["notes"])
    assert found["reproducer"] == "repro"
    ran = subprocess.run([sys.executable, "repro/repro.py"], cwd=repo.dir, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("call here, and recorded: equal, bit by bit") >= 2


def test_a_window_beside_the_change_says_which_would_show_it(repo: Guarded) -> None:
    """The commit is found all the same, and its contract value named."""
    words = ("bisect", "--good", repo.first, "--bad", "HEAD", "--from-step", "1")
    code, found = opguard_json(*words, cwd=repo.dir)
    assert (code, found["verdict"], found["divergence"]["value"]) == (0, "found", "loss")
    assert any("--from-step 0 --to-step 0" in note for note in found["notes"])


def test_what_is_refused(repo: Guarded) -> None:
    """Before anything is run."""
    (repo.dir / "used").mkdir()
    (repo.dir / "used" / "file").write_text("")
    ends = ("bisect", "--good", repo.first, "--bad", "HEAD")
    for words, said in (
        ((*ends, "--repro", "used"), "[output-exists]"),
        ((*ends, "--from-step", "2", "--to-step", "1"), "[bad-window]"),
        (("bisect", "--replay", "x", "--repro", "new"), "leave one of them out"),
        (("bisect", "--replay", "x", "--to-step", "1"), "leave one of them out"),
    ):
        done = opguard(*words, cwd=repo.dir)
        assert done.returncode == 2
        assert said in done.stderr
