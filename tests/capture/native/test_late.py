"""The compiled recorder makes the events of the Python one also where values come only at the end of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from opguard_ci.capture.fingerprint import cpu, mix64
from tests.capture import test_late as late
from tests.capture.running import Runner

from .test_same import same

STRANGE_OUTPUTS = """
import torch


def main(mark):
    for step in range(6):
        mark(step)
        x = torch.eye(3) * (step + 2)
        y = x.to_sparse()
        try:
            x @ torch.ones(2)
        except RuntimeError:
            pass
        x.add_(1)
        y.to_dense().sum()
        torch.rand(3, out=x[0])
        x.view(9).cos()
"""


@pytest.mark.parametrize("level", ["full", "op"])
@pytest.mark.parametrize("name", [*sorted(set(late.PROGRAMS) - {"compiled"}), "strange outputs"])
def test_late_values(strict_runners: tuple[Runner, Runner], tmp_path: Path, name: str, level: str):
    """Links, marks and hidden writes, at both levels, with handles in place of values."""
    source = late.PROGRAMS.get(name, STRANGE_OUTPUTS)
    source = source.replace("torch.empty(64)", "torch.empty(64).zero_()")  # what lies there is anybody's guess
    (tmp_path / "program.py").write_text(source + late.AS_ON_A_DEVICE)
    ran = same(strict_runners, "program.py:main", tmp_path, level=level)
    assert ran.ok, ran.answer
    assert ran.manifest["scheme"] == f"{cpu.SCHEME}+{mix64.SCHEME}"
    assert ran.manifest["recorder"] == {"kind": "compiled"}
