from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment, opguard, opguard_json


def edit_manifest(trace: Path, **changes: object) -> None:
    file = trace / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_identical(traces: Path) -> None:
    """Two equal runs: exit 0, no divergence, both sides named."""
    code, document = opguard_json("compare", "good", "again", cwd=traces)
    assert (code, document["verdict"], document["first_divergence"]) == (0, "identical", None)
    assert document["reference"]["trace"] == "good" and document["candidate"]["trace"] == "again"
    assert document["reference"]["environment"] == document["candidate"]["environment"]
    assert opguard("compare", "good", "again", "--strict", cwd=traces).returncode == 0


def test_diverged(traces: Path) -> None:
    """An edited eps is found at its operator, argument and line."""
    code, document = opguard_json("compare", "good", "edited", cwd=traces)
    assert (code, document["verdict"]) == (1, "diverged")
    first = document["first_divergence"]
    assert (first["op"], first["cause"], first["step"]) == ("aten.native_layer_norm.default", "arguments", 0)
    assert first["module"] == "1"
    done = opguard("compare", "good", "edited", cwd=traces)
    assert done.returncode == 1
    assert done.stdout.startswith("diverged: step 0, forward, aten.native_layer_norm.default in 1: arguments\n")
    assert "0.001" in done.stdout and "training.py:" in done.stdout


def test_manifest_as_argument(traces: Path) -> None:
    """A manifest stands for its trace."""
    assert opguard_json("compare", "good/manifest.json", "again", cwd=traces)[1]["verdict"] == "identical"


def test_needs_no_torch(traces: Path) -> None:
    """Traces are compared and shown by a process that never imports torch."""
    for words in (["compare", "good", "edited"], ["show", "good", "--events", "0..9", "--tensors"]):
        program = f"import sys\nfrom opguard_ci.cli import main\nmain({words!r})\nprint('torch' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=traces, env=environment(), capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "False"


def test_run_that_was_cut(traces: Path) -> None:
    """Agreement with a run that did not get to its end proves nothing."""
    edit_manifest(traces / "again", complete=False, outcome=None)
    code, document = opguard_json("compare", "good", "again", cwd=traces)
    assert (code, document["verdict"]) == (4, "untestable")
    assert any("did not run to its end" in note for note in document["notes"])


def test_truncated_events(traces: Path) -> None:
    """A trace that was cut is refused, not half compared."""
    events = traces / "edited" / "events-0.arrows"
    os.truncate(events, events.stat().st_size // 2)
    code, document = opguard_json("compare", "good", "edited", cwd=traces)
    assert (code, document["error"]["slug"]) == (2, "trace-damaged")


def test_foreign_folder(traces: Path) -> None:
    """A folder without a manifest, and a manifest of something else, are no traces."""
    (traces / "other").mkdir()
    assert opguard_json("compare", "good", "other", cwd=traces)[1]["error"]["slug"] == "not-a-trace"
    (traces / "other" / "manifest.json").write_text('{"name": "web app"}')
    assert opguard_json("compare", "good", "other", cwd=traces)[1]["error"]["slug"] == "not-a-trace"


@pytest.mark.parametrize(("key", "value"), [("schema", 2), ("scheme", "xor-1"), ("ranks", 2)])
def test_other_kind_of_trace(key: str, value: object, traces: Path) -> None:
    """Another schema, fingerprint scheme or number of ranks is exit code 3, and the field is named."""
    edit_manifest(traces / "edited", **{key: value})
    code, document = opguard_json("compare", "good", "edited", cwd=traces)
    assert (code, document["verdict"]) == (3, "error")
    assert key.removesuffix("s") in document["error"]["message"]
