"""Compiled code is recorded as one event per graph and call, and computes and compiles what it does in a bare run."""

from __future__ import annotations

from collections import Counter

import pytest

from opguard_ci.compare import compare_traces

from .running import Programs

# Matrices and no more, but in the optimizer: inductor has to generate no other code.
PROGRAM = """
import sys
import torch
from torch import nn
from torch._dynamo.utils import counters, get_compilation_metrics


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6, 4))

    def forward(self, x):
        return x @ self.a @ self.b if "fault" not in sys.argv else x @ (self.a @ self.b)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.c = torch.compile(Inner()), nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        x = self.inner(x)
        torch._dynamo.graph_break()
        return x @ self.c


def main():
    torch.manual_seed(0)
    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, dynamic=True, mode="reduce-overhead")
    step = torch.compile(optimizer.step)
    for rows in (3, 4, 5):
        compiled(torch.randn(rows, 4)).sum().backward()
        step()
        optimizer.zero_grad()
        print(*(parameter.sum().item().hex() for parameter in model.parameters()))
    print({key: counters["stats"][key] for key in ("calls_captured", "unique_graphs")})
    print(sorted({each.co_name for each in get_compilation_metrics() if each.graph_op_count}))
"""
WHOLE = """
import sys
import torch
from torch import nn


class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad, alpha=-0.1)


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = Plain(model.parameters())
    what, how = optimizer.step, "inductor"
    if "more" in sys.argv:
        what, how = lambda: torch.compile(optimizer.step)(), "eager"
    compiled = torch.compile(what, fullgraph=True, backend=how)
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
        compiled()
        optimizer.zero_grad()
        print(model.weight.sum().item().hex())
"""


def test_nested_dynamic_broken_and_in_the_optimizer(programs: Programs):
    """The graph around a break, its backward and the optimizer's: five calls a step, of which the first step compiles
    all. A fault inside is named by its graph.
    """
    bare, ran = programs.run(PROGRAM, bare=True), programs.run(PROGRAM)
    assert ran.ok, ran.answer
    assert ran.stdout == bare.stdout
    called = Counter((event.step, event.phase, event.op) for event in ran.events(kinds=("region",)))
    kinds = {
        ("forward", "inductor.forward"): 2,
        ("backward", "inductor.backward"): 2,
        ("optimizer", "inductor.forward"): 1,
    }
    assert called == {(step, *kind): count for step in range(3) for kind, count in kinds.items()}
    assert not ran.manifest["coverage"]["unseen"]

    verdict = compare_traces(ran.trace, programs.run(PROGRAM, argv=("fault",)).trace)
    first = verdict.first_divergence
    assert first is not None
    assert (first["op"], first["cause"], first["step"]) == ("inductor.forward", "code", 0)
    assert first["stack"][0]["function"] == "Outer.forward"


@pytest.mark.parametrize("what", ["step", "more"])
def test_an_optimizer_compiled_as_a_whole(programs: Programs, what: str):
    """Our hooks break no graph that must be whole, nor one with ``torch.compile`` inside. Steps are seen where the
    optimizer's own method was compiled.
    """
    bare, ran = programs.run(WHOLE, bare=True, argv=(what,)), programs.run(WHOLE, argv=(what,))
    assert ran.ok, ran.answer
    assert ran.stdout == bare.stdout
    assert len(ran.stdout.splitlines()) == 2
    places = [(event.step, event.phase) for event in ran.events(kinds=("region",))]
    assert places == ([(0, "optimizer"), (1, "optimizer")] if what == "step" else [])
    assert bool(ran.contract("parameter", step=1)) == (what == "step")
