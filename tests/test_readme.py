"""What README shows is so."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

pytestmark = pytest.mark.usefixtures("own_servers")


def opguard(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPGUARD_SERVER_IDLE": "15"}
    command = [sys.executable, "-m", "opguard_ci", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_own_code_goes_through_the_commands_shown(tmp_path: Path):
    """The recipe and the commands below it work as they stand; with a change between them, compare names it."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "train.py").write_text(code)
    lines = re.findall(r"^    (opguard .*)$", README, re.MULTILINE)
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [words[0] for words in commands] == ["replay", "run", "run", "compare"]
    changed = code.replace("LayerNorm(16)", "LayerNorm(16, eps=1e-6)")
    for words, text in zip(commands, [code, code, changed, changed], strict=True):
        (tmp_path / "train.py").write_text(text)
        done = opguard(words, tmp_path)
        assert done.returncode == (1 if words[0] == "compare" else 0), done.stdout + done.stderr
    assert "eps 1e-05 -> 1e-06" in done.stdout


def test_demo_says_what_is_shown(tmp_path: Path):
    """What the output in README says about the change and its place, the demo says."""
    (shown,) = re.findall(r"`--seed 2`:\n\n```\n(.*?)```", README, re.DOTALL)
    done = opguard(["demo", "--seed", "2"], tmp_path)
    assert done.returncode == 0, done.stderr
    labels = r"Planted|  [-+] |diverged|  (where|operator|what|source) "
    told = [line for line in shown.splitlines() if re.match(labels, line)]
    assert len(told) == 8
    assert set(told) <= set(done.stdout.splitlines())
