"""A changed ``eps`` is named wherever the operator runs: in checkpoints, transforms, custom functions, branches."""

from __future__ import annotations

import pytest

from opguard_ci.capture.text import READ, Arguments, _text
from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import RECOMPUTED

from .running import Programs, Ran

START = """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

EPS = {eps}

def norm(x):
    return F.layer_norm(x, (6,), eps=EPS)

class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return norm(x) * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * norm(x)

@torch.library.custom_op("inside::scaled", mutates_args=())
def scaled(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.var() + eps)

scaled.register_autograd(lambda ctx, grad: (grad * 0.5, None))

def main():
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(6, 6))
    optimizer = torch.optim.SGD([w], lr=0.5)
    for _ in range(2):
        x = torch.randn(4, 6)
        optimizer.zero_grad()
        loss = compute(x, w)
        loss.backward()
        optimizer.step()

def compute(x, w):
    h = (x @ w).tanh()
"""

PLACES = {
    "checkpoint": "y = checkpoint(lambda h: norm(h.exp()), h, use_reentrant=False)",
    "reentrant checkpoint": "y = checkpoint(lambda h: norm(h.exp()), h, use_reentrant=True)",
    "cond": "y = torch.cond(torch.tensor(True), lambda h: norm(h), lambda h: h.sin(), (h,))",
    "vmap": "y = torch.vmap(norm)(h)",
    "grad": "y = torch.func.grad(lambda h: norm(h).pow(3).sum())(h)",
    "double backward": "(y,) = torch.autograd.grad(norm(h).pow(3).sum(), h, create_graph=True)",
    "custom function": "y = Normed.apply(h)",
    "custom operator": "y = scaled(h, EPS)",
}


def run(programs: Programs, body: str, eps: str) -> Ran:
    source = START.format(eps=eps) + f"    {body}\n    return y.pow(2).sum()\n"
    ran = programs.run(source)
    assert ran.ok, ran.answer
    assert ran.manifest["coverage"]["unseen"] == []
    return ran


@pytest.mark.parametrize("place", PLACES)
def test_a_changed_eps_is_named(place: str, programs: Programs):
    """Where it first made a difference, with both values; the same program twice is identical."""
    first, again, other = (run(programs, PLACES[place], eps) for eps in ("1e-05", "1e-05", "1e-02"))
    assert compare_traces(first.trace, again.trace).verdict == "identical"
    found = compare_traces(first.trace, other.trace).first_divergence
    assert found is not None
    wanted = {"custom operator": "inside.scaled", "cond": "cond"}.get(place, "layer_norm")
    assert wanted in found["op"], found
    assert (found["cause"], found["step"], found["phase"]) == ("arguments", 0, "forward")
    # Of a branch, which runs as one operator, the text of its graph stands among the arguments.
    assert ("graph" if place == "cond" else "1e-05 -> 0.01") in found["detail"]


@pytest.mark.parametrize("kind", ["checkpoint", "reentrant checkpoint"])
def test_recomputation_is_marked(kind: str, programs: Programs):
    """The operators that a checkpoint runs again in backward carry the mark, and only these."""
    ran = run(programs, PLACES[kind], "1e-05")
    marked = [event.op for event in ran.events(step=0) if event.flags & RECOMPUTED and event.kind == "op"]
    assert {op.split(".")[1] for op in marked} >= {"exp", "native_layer_norm"}
    assert all(event.phase == "backward" for event in ran.events(step=0) if event.flags & RECOMPUTED)
    assert not any(event.flags & RECOMPUTED for event in run(programs, "y = norm(h)", "1e-05").events())


ENGINE = """(y,) = torch.autograd._engine_run_backward(
        (norm(h).pow(3).sum(),), grad_tensors=(torch.ones(()),), keep_graph=True, create_graph=True, inputs=(h,),
        allow_unreachable=False, accumulate_grad=False)"""


@pytest.mark.parametrize("body", [PLACES["double backward"], ENGINE], ids=["grad", "engine"])
def test_a_graph_of_gradients_is_no_recomputation(programs: Programs, body: str):
    """What ``autograd.grad`` computes, and keeps a graph of, is an ordinary backward pass; however it is called."""
    assert not any(event.flags & RECOMPUTED for event in run(programs, body, "1e-05").events())


def test_what_is_recomputed_stands_where_it_is_computed(programs: Programs):
    """Outside of modules too: at its own line, not at that of the node that asked for it."""
    body = """def block(x):
        z = x.sin()
        return z.exp()
    y = checkpoint(block, h, use_reentrant=False)"""
    ran = run(programs, body, "1e-05")
    again = [event for event in ran.events(step=0) if event.flags & RECOMPUTED and event.kind == "op"]
    assert [(event.op, (event.stack or "").splitlines()[0].rpartition("\t")[2]) for event in again] == [
        ("aten.sin.default", "z = x.sin()"),
        ("aten.exp.default", "return z.exp()"),
    ]


def test_a_function_among_the_arguments_is_known_by_what_it_computes() -> None:
    """Code, constants, closures and numbers it refers to; not by its name, its address or where it stands."""

    def make(factor: float, shift: int = 1) -> object:
        def inner(x: int) -> float:
            return x * factor + shift

        return inner

    def text(function: object) -> str:
        return _text(function, READ, Arguments())

    assert text(make(2.0)) == text(make(2.0)) != text(make(3.0))
    assert text(make(2.0)) != text(make(2.0, 2))
    assert text(lambda x: x + 1) == text(lambda x: x + 1) != text(lambda x: x + 2)
    assert text(lambda: make(1.0)) == text(lambda: make(1.0))  # recursion ends
