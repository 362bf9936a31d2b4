"""Dynamo compiles the program, and none of our hooks that run in the middle of it."""

from __future__ import annotations

from types import ModuleType

import pytest

from opguard_ci.capture.uncompiled import codes

from .running import Programs

PROGRAM = """
import torch
from torch import nn
from torch._dynamo.convert_frame import register_bytecode_hook

ours = []


def main():
    register_bytecode_hook(lambda code, _: ours.append(code.co_name) if "opguard_ci" in code.co_filename else None)
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def train(batch):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        print(train(torch.randn(3, 4)).item(), model.weight.sum().item(), ours)
"""
WARNED = """
import warnings
import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            compiled(torch.randn(3, 4)).sum().backward()
            step()
            print(model.weight.sum().item())
        print(*(str(each.message).partition(".")[0] for each in found), sep=chr(10))
        nn.modules.module.register_module_forward_hook(lambda *_: None)
        compiled(torch.randn(3, 4))
        print(any("global hooks" in str(each.message) for each in found))
"""
SOURCE = """
import functools

def plain():
    return [each for each in map(lambda one: one, ())]

class Held:
    @property
    def shown(self): pass
    @staticmethod
    def made(): pass
    @functools.cached_property
    def kept(self): pass
    @functools.lru_cache
    def remembered(self): pass
"""


def test_a_step_that_ends_within_compiled_code(programs: Programs, python_programs: Programs):
    """The optimizer steps behind a graph break, where dynamo looks at every frame: the step is recorded as ever."""
    bare = programs.run(PROGRAM, bare=True)
    for each in (programs, python_programs):
        ran = each.run(PROGRAM)
        assert ran.ok, ran.answer
        assert ran.stdout == bare.stdout
        assert [line[-2:] for line in ran.stdout.splitlines()] == ["[]", "[]"]
        assert ran.contract("parameter", step=1)


def test_nobody_is_warned_of_our_hooks(programs: Programs):
    """Compiled modules and optimizers warn as in a bare run; of the program's own global hooks, for instance."""
    bare, ran = programs.run(WARNED, bare=True), programs.run(WARNED)
    assert ran.ok, ran.answer
    assert ran.stdout == bare.stdout
    assert ran.stdout.endswith("True\n")


def test_all_code_of_a_module_is_found():
    """Of functions and methods, decorated ones and what they define; nothing that a module only imported."""
    module = ModuleType("made")
    module.__dict__["__name__"] = "made"
    exec(compile(SOURCE, "made.py", "exec"), module.__dict__)
    names = {code.co_name for code in codes(module)}
    assert names >= {"plain", "<lambda>", "shown", "made", "kept", "remembered"}
    module.__dict__["borrowed"] = pytest.fixture
    assert {code.co_name for code in codes(module)} == names
