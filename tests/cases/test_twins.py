"""Twins compute what their original computes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import twins
from tests.cases.expectations import DATA, all_cases

PROGRAM = '''"""A program."""
import torch.nn as nn
LIMIT = 3


class Net(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.inner, self.training_steps, self.weight = nn.Linear(width, width), 0, None

    def forward(self, x):
        for k in range(LIMIT):
            x = self.inner(x) + self.inner.weight
        return x


def good(mark=print):
    net = Net(width=4, eps=1e-5)
    mark(0)
    return {"net": net, "training_steps": 1}
'''


def test_comments_move_every_statement_and_change_none():
    """The commented twin has the syntax tree of the original, further down."""
    twin = twins.commented(PROGRAM)
    assert ast.dump(ast.parse(twin)) == ast.dump(ast.parse(PROGRAM))
    first, moved = ast.parse(PROGRAM).body[-1].lineno, ast.parse(twin).body[-1].lineno
    assert moved >= first + len(twins.FILLER) * len(ast.parse(PROGRAM).body)


def test_only_names_of_the_program_change():
    """Local names and own attributes change; keyword arguments, globals, torch's names and looked-up strings stay."""
    tree = ast.parse(PROGRAM)
    assert twins.local_names(tree) == ["net", "x", "k"]
    assert twins.own_attributes(tree) == ["inner"]
    twin = twins.renamed(PROGRAM)
    for kept in ("width", "eps", "LIMIT", "mark", ".weight", "self.training_steps", "Net(width=4, eps=1e-05)"):
        assert kept in twin
    for gone in ("self.inner", " net ", "(x)"):
        assert gone not in twin


CHECK = """
import importlib.util, pathlib, sys, warnings
import torch
warnings.simplefilter("ignore")


def load(path):
    spec = importlib.util.spec_from_file_location(path.parent.name + path.stem, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    original, twin = load(path), load(pathlib.Path(sys.argv[2]) / path.name)
    for name in ("good", "bad"):
        if hasattr(original, name):
            ours, theirs = getattr(original, name)(), getattr(twin, name)()
            pairs = zip(ours.values(), theirs.values(), strict=True)
            if not all(same(a, b) for a, b in pairs):
                print(path.name, name)
"""


@pytest.mark.parametrize("make", [twins.commented, twins.renamed], ids=["commented", "renamed"])
def test_twins_of_the_cases_return_the_same_bits(make, tmp_path: Path):
    """Every pair of every case returns, without capture, bit for bit what its original returns."""
    originals, copies = tmp_path / "originals", tmp_path / "copies"
    originals.mkdir()
    copies.mkdir()
    for case in all_cases():
        # A thread count or a race is not the twin's doing.
        if case.is_pair and case.attempts == 1 and case.name != "c_thread_count":
            (originals / case.path.name).write_bytes(case.path.read_bytes())
            (copies / case.path.name).write_text(make(case.path.read_text()))
    command = [sys.executable, "-c", CHECK, str(originals), str(copies)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
    assert len(list(originals.iterdir())) > len(list(DATA.glob("[a-f]_*.py"))) // 2
