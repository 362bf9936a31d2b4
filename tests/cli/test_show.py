from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import opguard, opguard_json


def test_summary(traces: Path) -> None:
    """With no question, a trace says what it is."""
    done = opguard("show", "good", cwd=traces)
    assert done.returncode == 0 and "training.py:train" in done.stdout


def test_questions(traces: Path) -> None:
    """Events by number, text and source line."""
    code, document = opguard_json("show", "good", "--events", "3..5", "--tensors", cwd=traces)
    assert code == 0 and [event["index"] for event in document["events"]] == [3, 4, 5]
    assert all("writes" in event for event in document["events"])
    code, document = opguard_json("show", "good", "--search", "layer_norm", "--limit", "2", cwd=traces)
    assert code == 0 and len(document["events"]) == 2
    assert all("layer_norm" in event["op"] for event in document["events"])
    line = next(n for n, text in enumerate((traces / "training.py").read_text().split("\n"), 1) if "loss = " in text)
    code, document = opguard_json("show", "good", "--source", f"training.py:{line}", cwd=traces)
    assert code == 0 and document["events"]


@pytest.mark.parametrize(
    "words", [["--events", "x"], ["--events", "5..3"], ["--source", "model.py"], ["--source", ":3"], ["--limit", "0"]]
)
def test_bad_questions(words: list[str], tmp_path: Path) -> None:
    """A question that makes no sense is a usage error before the trace is opened."""
    code, document = opguard_json("show", "good", *words, cwd=tmp_path)
    assert (code, document["error"]["slug"]) == (2, "usage")
    assert "not" in document["error"]["message"] or "ends" in document["error"]["message"]


def test_reader_that_goes_away(traces: Path) -> None:
    """``opguard show | head -1`` ends quietly."""
    import subprocess

    from tests.cli.command import command, environment

    words = " ".join(command("show", "good", "--events", "0..1000", "--limit", "1000"))
    shell = f"{words} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=traces, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
