"""The demo finds what it planted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_ci.commands.demo import compare_versions
from opguard_ci.demo.changes import CHANGES, plant

pytestmark = pytest.mark.usefixtures("own_servers")


@pytest.mark.parametrize("seed", range(len(CHANGES)), ids=lambda seed: CHANGES[seed].kind)
def test_what_is_planted_is_found(seed: int, tmp_path: Path):
    """The operator of each fault is named, with the line of the project that called it; each refactor passes."""
    planted = plant(seed)
    document = compare_versions(planted, tmp_path)
    assert planted.is_found_in(document), document["first_divergence"]
    if planted.change.op is not None:
        first = document["first_divergence"]
        frame = first["stack"][0]
        files = planted.files_before if first["side"] == "reference" else planted.files_after
        assert files[frame["file"]].splitlines()[frame["line"] - 1].strip() == frame["source"].strip()


def test_command_prints_the_object_and_keeps_the_project(tmp_path: Path):
    """``--json`` prints compare's object with what was planted; ``--keep`` leaves both versions and their traces."""
    command = [sys.executable, "-m", "opguard_ci", "demo", "--seed", "2", "--keep", "kept", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert document["verdict"] == "diverged"
    assert document["planted"] == {
        "op": document["first_divergence"]["op"],
        "kind": "attention-scale",
        "file": "smallgpt/model.py",
        "line": 14,
    }
    assert "had to be named, and is" in done.stderr
    for side, name in (("reference", "before"), ("candidate", "after")):
        assert (tmp_path / "kept" / name / "train.py").is_file()
        assert (tmp_path / document[side]["trace"] / "manifest.json").is_file()


def test_command_refuses_a_folder_in_use(tmp_path: Path):
    """A folder that holds something is left alone."""
    (tmp_path / "mine").write_text("")
    command = [sys.executable, "-m", "opguard_ci", "demo", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
