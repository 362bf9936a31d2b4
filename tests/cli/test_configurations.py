"""``opguard compare TARGET -- ARGS1 ::: ARGS2``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import COMPARE_KEYS, opguard

pytestmark = pytest.mark.usefixtures("shared_servers")

DRAWING = """\
import sys
import torch

for _ in range(2):
    loss = (torch.rand(3, requires_grad=True) * float(sys.argv[1])).sum()
    loss.backward()
"""


def compared(project: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = opguard("compare", "--json", *words, cwd=project)
    return done.returncode, json.loads(done.stdout)


def test_a_setting_is_found_at_its_operator(project: Path) -> None:
    """Two runs, one argument: where it first makes a difference; both sets of arguments are in the report."""
    code, document = compared(project, "training.py", "--keep", "kept", "--", "1e-5", ":::", "1e-3")
    assert (code, document["verdict"]) == (1, "diverged")
    first = document["first_divergence"]
    assert (first["op"], first["cause"]) == ("aten.native_layer_norm.default", "arguments")
    assert any(tensor["different"] for tensor in first["tensors"])
    assert [document[side]["argv"] for side in ("reference", "candidate")] == [["1e-5"], ["1e-3"]]
    assert document["candidate"]["trace"] == "kept/candidate"
    assert (project / "kept" / "candidate" / "manifest.json").exists()
    assert sorted(entry.name for entry in (project / "kept").iterdir()) == ["candidate", "reference"]
    assert document["target"] == "training.py"


def test_settings_that_change_nothing(project: Path) -> None:
    """No arguments against the default written out; the text names both."""
    done = opguard("compare", "training.py", "--steps", "1", "--", ":::", "0.00001", cwd=project)
    assert (done.returncode, done.stdout.partition(":")[0].splitlines()[-1]) == (0, "identical")
    assert "arguments none" in done.stdout
    assert "arguments 0.00001" in done.stdout


def test_arguments_are_not_blamed_for_what_does_not_repeat_itself(project: Path) -> None:
    """Both runs are made again before a difference counts."""
    (project / "drawing.py").write_text(DRAWING)
    code, document = compared(project, "drawing.py", "--", "1", ":::", "2")
    assert (code, document["verdict"]) == (4, "unstable")
    assert document["first_divergence"]["op"] == "aten.rand.default"
    assert "does not repeat itself" in document["notes"][-1]


def test_a_run_that_breaks(project: Path) -> None:
    """Is untestable, and it is said which of the two it was."""
    code, document = compared(project, "training.py", "--", "1e-5", ":::", "many")
    assert (code, document["verdict"], document["error"]["slug"]) == (4, "untestable", "target-raised")
    assert "This is the candidate, with the arguments ['many']." in document["notes"]
    assert set(document) >= COMPARE_KEYS and document["first_divergence"] is None


@pytest.mark.parametrize(("words", "slug"), [
    (("training.py",), "usage"),
    (("training.py", "--", "a"), "usage"),
    (("training.py", "--", "a", ":::", "b", ":::", "c"), "usage"),
    (("a", "b", "--", "c", ":::", "d"), "usage"),
    (("a", "b", "--profile", "strict"), "usage"),
    (("a", "b", "--allow-unseen"), "usage"),
    (("a", "b", "--from-step", "0"), "usage"),
    (("a", "b", "--ranks", "2"), "usage"),
    (("missing.py", "--", ":::", "b"), "target-not-found"),
])  # fmt: skip
def test_words_that_make_no_sense(project: Path, words: tuple[str, ...], slug: str) -> None:
    """An option that would do nothing is refused, and so is anything but two sets of arguments."""
    code, document = compared(project, *words)
    assert (code, document["error"]["slug"]) == (2, slug)
