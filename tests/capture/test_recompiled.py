"""Recompilations are noted, in words that are the same in every run."""

from __future__ import annotations

from .running import Programs

PROGRAM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), 1

    def forward(self, x):
        x = self.layer(x) * self.scale
        torch._dynamo.graph_break()
        return x + 1


def main():
    torch.manual_seed(0)
    model = Model()
    compiled = torch.compile(model, backend="eager")
    once = torch.compile(lambda x: x * 2, backend="eager")
    for rows, scale in ((2, 1), (3, 1), (3, 2), (3, 2)):
        model.scale = scale
        once(torch.ones(3))
        print(compiled(torch.ones(rows, 4)).sum().item())
"""


def test_recompilations_are_noted(programs: Programs):
    """How often, where, and why; not what was compiled once. Nothing else changes."""
    bare, ran, again = programs.run(PROGRAM, bare=True), programs.run(PROGRAM), programs.run(PROGRAM)
    assert ran.ok, ran.answer
    assert ran.stdout == bare.stdout
    notes = [note for note in ran.manifest["notes"] if "compiled" in note]
    assert notes == [
        "program.py:11 forward was compiled 3 times: tensor 'x' size mismatch at index 0. expected 2, actual 3; "
        "self.scale == 1.",
        "program.py:13 forward, from a graph break on, was compiled 2 times: tensor 'x' size mismatch at index 0. "
        "expected 2, actual 3.",
    ]
    assert ran.manifest["notes"] == again.manifest["notes"]
    assert ran.digests == again.digests
