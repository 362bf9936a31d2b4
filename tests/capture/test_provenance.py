"""Module paths and stacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .running import ROOT, Programs, Ran


def frames(stack: str | None) -> list[tuple[str, str, str]]:
    """File, function and source of each frame, innermost first."""
    lines = (stack or "").splitlines()
    return [(file, function, source) for file, _, function, source in (line.split("\t") for line in lines)]


def test_modules_are_named_below_the_outermost(programs: Programs):
    """Also in lists, when shared, when called twice, and for what is no submodule."""
    ran = programs.run(
        """
        import torch
        from torch import nn
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(4)
                self.free = [nn.Linear(4, 4)]
            def forward(self, x):
                return self.free[0](self.norm(x)) + 1
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList([Block(), Block()])
                self.same = self.blocks[0]
            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                return self.same(x).mul(2)
        def main():
            x = torch.ones(2, 4) * 3
            (Net()(x).sum()).backward()
        """
    )
    assert [event.module for event in ran.events("aten.native_layer_norm")] == [
        "blocks.0.norm",
        "blocks.1.norm",
        "blocks.0.norm",
    ]
    assert [event.module for event in ran.events("aten.addmm")] == [f"blocks.{n}.Linear" for n in (0, 1, 0)]
    assert [event.module for event in ran.events("aten.mul.Tensor")][:2] == [None, ""]
    backward = [event.module for event in ran.events("aten.native_layer_norm_backward")]
    assert backward == ["blocks.0.norm", "blocks.1.norm", "blocks.0.norm"]


def test_an_exception_inside_a_module_leaves_no_path_behind(programs: Programs):
    """What runs after a caught error belongs to no module."""
    ran = programs.run(
        """
        import torch
        from torch import nn
        class Bad(nn.Module):
            def forward(self, x):
                raise ValueError
        def main():
            net = nn.Sequential(nn.Linear(2, 2), Bad())
            for _ in range(2):
                try:
                    net(torch.ones(1, 2))
                except ValueError:
                    pass
                torch.ones(2) + 5
        """
    )
    assert [event.module for event in ran.events("aten.add")] == [None, None]
    assert [event.module for event in ran.events("aten.addmm")] == ["0", "0"]


STACKS = """
import functools
import torch

def decorator(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

@decorator
def double(x):
    return x * 2

def main():
    x = torch.ones(3, requires_grad=True)
    y = double(x)
    z = (lambda t: t - 1)(y)
    exec("w = z + 1")
    z.sum().backward()
    return [n + 3 for n in [z.detach()]]
"""


def test_stacks_hold_the_users_frames_alone(programs: Programs):
    """Innermost first, with their source; decorators, lambdas and exec'd code among them."""
    ran = programs.run(STACKS)
    (double,) = [event for event in ran.events("aten.mul") if event.phase == "forward"]
    assert frames(double.stack) == [
        ("program.py", "double", "return x * 2"),
        ("program.py", "decorator.<locals>.inner", "return function(*args)"),
        ("program.py", "main", "y = double(x)"),
    ]
    assert frames(ran.events("aten.sub")[0].stack)[0] == (
        "program.py",
        "main.<locals>.<lambda>",
        "z = (lambda t: t - 1)(y)",
    )
    assert [frame[0] for frame in frames(ran.events("aten.add")[0].stack)] == ["<string>", "program.py"]


def test_a_backward_operator_has_the_stack_of_its_forward(programs: Programs):
    """Not that of the call of backward."""
    ran = programs.run(STACKS)
    (backward,) = [event for event in ran.events("aten.mul") if event.phase == "backward"]
    assert frames(backward.stack)[0][1:] == ("double", "return x * 2")


def test_no_frame_is_ours_or_torchs(programs: Programs):
    """Modules, optimizers, loaders, threads, checkpointing: only the target's file appears."""
    ran = programs.run(
        """
        import threading
        import torch
        from torch import nn
        from torch.utils.checkpoint import checkpoint
        from torch.utils.data import DataLoader, TensorDataset
        def work():
            torch.ones(2) * 2
        def main():
            model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
            optimizer = torch.optim.AdamW(model.parameters())
            for (x,) in DataLoader(TensorDataset(torch.ones(4, 4)), 2, shuffle=True):
                checkpoint(model, x, use_reentrant=False).sum().backward()
                optimizer.step()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        """
    )
    files = {frame[0] for event in ran.events() for frame in frames(event.stack)}
    assert files == {"program.py"}
    assert all(event.stack for event in ran.events())


def test_paths_are_relative_to_the_tree(programs: Programs):
    """To the root that was named; for a target outside of it, to its own folder; to site-packages for libraries."""
    programs.write("tree/jobs/helper.py", "def plus(x):\n    return x + 1\n")
    programs.write("tree/jobs/train.py", "import torch, helper\ndef main():\n    helper.plus(torch.ones(2))\n")
    elsewhere = programs.folder / "elsewhere"
    elsewhere.mkdir()

    def files(ran: Ran) -> list[str]:
        return [frame[0] for frame in frames(ran.events("aten.add")[0].stack)]

    assert files(programs.again("tree/jobs/train.py:main")) == ["tree/jobs/helper.py", "tree/jobs/train.py"]
    inside = programs.again("tree/jobs/train.py:main", root=str(programs.folder / "tree"))
    assert files(inside) == ["jobs/helper.py", "jobs/train.py"]
    outside = programs.again("../tree/jobs/train.py:main", cwd=str(elsewhere))
    assert files(outside) == ["helper.py", "train.py"]


def test_a_notebook_has_cells(tmp_path: Path):
    """Frames of cells are the user's."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import torch, opguard_ci, linecache
name = "<ipython-input-3-0123abcd>"
source = "def cell(x):\\n    return x + 1\\n"
linecache.cache[name] = (len(source), None, source.splitlines(True), name)
space = {{}}
exec(compile(source, name, "exec"), space)
with opguard_ci.capture("trace"):
    space["cell"](torch.ones(2))
from opguard_ci.trace.reader import read_trace
for table in read_trace("trace").steps():
    for event in table.events():
        if event.op == "aten.add.Tensor":
            print(event.stack.splitlines()[0])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.rstrip("\n").split("\t") == ["<ipython-input-3-0123abcd>", "2", "cell", "return x + 1"], (
        done.stderr
    )


def test_deep_recursion_is_cut(programs: Programs):
    """A stack has at most 24 frames, the innermost."""
    ran = programs.run(
        "import torch\ndef down(n):\n    return torch.ones(2) * 2 if n == 0 else down(n - 1)\n"
        "def main():\n    down(200)\n"
    )
    assert len(frames(ran.events("aten.mul")[0].stack)) == 24
