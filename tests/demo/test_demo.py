"""The demo finds what it planted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_ci.demo.changes import CHANGES
from tests.demo.planted import compare_versions, plant

pytestmark = pytest.mark.usefixtures("own_cache")


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


def test_the_command_finds_the_planted_commit(tmp_path: Path):
    """``--json`` prints bisect's object with repository and what was planted; the history stays where it was put."""
    command = [sys.executable, "-m", "opguard_ci", "demo", "--seed", "2", "--keep", "kept", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (document["verdict"], document["repository"]) == ("found", str(tmp_path / "kept"))
    assert document["planted"] == {
        "commit": document["first_bad"],
        "op": document["divergence"]["op"],
        "kind": "attention-scale",
    }
    assert "had to be named, and is" in done.stderr
    log = subprocess.run(["git", "log", "--format=%H"], cwd=tmp_path / "kept", capture_output=True, text=True)
    assert document["first_bad"] in log.stdout.split()


def test_command_refuses_a_folder_in_use(tmp_path: Path):
    """A folder that holds something is left alone."""
    (tmp_path / "mine").write_text("")
    command = [sys.executable, "-m", "opguard_ci", "demo", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
