"""The manifest of a run, and what happens when capture itself cannot go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .running import Programs
from .test_run import LOOP


def test_the_manifest_has_every_documented_key(programs: Programs):
    """As docs/trace.md lists them, with the outcome of the run."""
    ran = programs.run(LOOP, "train", argv=("a", "b"), commit="1" * 40, tree="2" * 40, allow_unseen=True)
    manifest = ran.manifest
    assert manifest.keys() >= {
        "schema",
        "target",
        "argv",
        "cwd",
        "commit",
        "tree",
        "environment",
        "profile",
        "level",
        "recorder",
        "scheme",
        "ranks",
        "coverage",
        "steps",
        "objects",
        "complete",
        "outcome",
        "findings",
        "notes",
        "last_operator",
        "allow_unseen",
    }
    assert (manifest["target"], manifest["argv"], manifest["cwd"]) == ("program.py:train", ["a", "b"], ".")
    assert (manifest["commit"], manifest["tree"]) == ("1" * 40, "2" * 40)
    assert manifest["outcome"] == {"status": "ok"}
    assert manifest["complete"] is True
    assert manifest["objects"]["events-0.arrows"]["events"] == sum(step["events"] for step in manifest["steps"])
    assert ran.answer["coverage"] == manifest["coverage"]
    assert ran.answer["steps"] == len(manifest["steps"]) == 4


def test_coverage_counts_operators(programs: Programs):
    """What was seen, and what of it has fingerprints."""
    ran = programs.run(
        """
        import torch
        class Closed(torch.Tensor):
            @staticmethod
            def __new__(cls, x):
                return torch.Tensor._make_wrapper_subclass(cls, x.shape)
            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                return torch.ones(2) * 3
        def main():
            Closed(torch.ones(2)) + 1
            return Closed(torch.ones(2))
        """
    )
    coverage = ran.manifest["coverage"]
    assert coverage["operators"] == len(ran.events())
    assert len(coverage["unhashed"]) == 1
    assert "Closed" in coverage["unhashed"][0]


def test_the_last_operator_is_left_for_a_crash(programs: Programs, tmp_path: Path):
    """The name of the operator begun last, padded with NUL."""
    crumb = tmp_path / "crumb"
    crumb.write_bytes(bytes(256))
    ran = programs.run(
        "import ctypes, os, torch\ndef main():\n    torch.ones(3) * 2\n    torch.sin(torch.ones(2))\n    os._exit(3)\n",
        breadcrumb=str(crumb),
    )
    assert ran.exit == 3
    assert crumb.read_bytes().split(b"\0")[0] == b"aten.sin.default"


def test_a_manifest_of_a_long_run_is_written_in_between(programs: Programs):
    """A run of hundreds of steps that ends at once has lost none of its events, and little of its manifest."""
    ran = programs.run(f"import os\n{LOOP}\ndef main():\n    train(200)\n    os._exit(1)\n")
    assert [table.step for table in ran.trace.steps()] == list(range(200))
    assert len(ran.steps) >= 16


BROKEN = """
import os
import torch
from opguard_ci.capture import {module}

def main():
    original = {owner}.{name}
    def broken(*args, **kwargs):
        if os.environ.get("BREAK"):
            raise {error}
        return original(*args, **kwargs)
    {owner}.{name} = broken
    x = torch.ones(3) * 2
    os.environ["BREAK"] = "1"
    y = x + 1
    x.mul_(2)
    z = torch.rand(3)
    del os.environ["BREAK"]
    print((y + z.new_zeros(3) + x).tolist())
"""


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        ("recorder", "recorder", "arguments"),
        ("call", "call.Call", "before"),
        ("call", "call.Call", "after"),
        ("look", "look.Looks", "at"),
        ("links", "links.Memory", "adopt"),
        ("session", "session.Session", "append"),
        ("provenance", "provenance.Stacks", "current"),
    ],
)
@pytest.mark.parametrize("error", ["KeyError('defect')", "RecursionError()"])
def test_a_defect_of_the_recorder_leaves_the_run_as_it_is(
    module: str, owner: str, name: str, error: str, python_programs: Programs
):
    """The target computes what it would have, and coverage names the operators about which nothing is proved."""
    ran = python_programs.run(BROKEN.format(module=module, owner=owner, name=name, error=error))
    assert ran.ok, ran.answer
    assert ran.stdout == "[7.0, 7.0, 7.0]\n"
    unseen = " ".join(ran.manifest["coverage"]["unseen"])
    assert "aten.add.Tensor, on which the recorder itself failed" in unseen
    assert error.partition("(")[0] in unseen
    assert ran.events("aten.add")[-1].reads[0].value


FULL_DISK = """
import errno, io, os, torch
from opguard_ci.trace import stream

def main(mark):
    for step in range(6):
        mark(step)
        torch.ones(3) * step
        if step == 3:
            real = stream.ArrowFile._flush
            class Full(io.RawIOBase):
                def write(self, data):
                    raise OSError(errno.ENOSPC, "No space left on device")
            def flush(self):
                kept, self._file = self._file, Full()
                self._file.fileno = kept.fileno
                try:
                    real(self)
                finally:
                    self._file = kept
            stream.ArrowFile._flush = flush
        print(step, flush=True)
"""


def test_a_full_disk_ends_the_run_and_keeps_its_steps(programs: Programs):
    """``untestable`` with its own slug; what was written before can be read."""
    ran = programs.run(FULL_DISK)
    assert (ran.answer["status"], ran.answer["slug"]) == ("untestable", "disk-full"), ran.answer
    assert ran.manifest["outcome"]["slug"] == "disk-full"
    assert not ran.manifest["complete"]
    assert [table.step for table in ran.trace.steps()] == [-1, 0, 1, 2]
    assert ran.stdout.split() == ["0", "1", "2", "3"]


def test_out_of_memory_in_hashing_leaves_a_tensor_unhashed(python_programs: Programs):
    """The run goes on, and coverage says which operator."""
    ran = python_programs.run(
        """
        import numpy, torch
        def main():
            x = torch.ones(4, 4) * 2
            real = numpy.ndarray
            def full(*args):
                raise MemoryError("no room")
            numpy.ndarray = full
            y = x.t() + 1
            numpy.ndarray = real
            print(y.sum().item())
        """
    )
    assert ran.ok
    assert ran.stdout == "48.0\n"
    assert any("no room" in reason for reason in ran.manifest["coverage"]["unhashed"])
    assert ran.manifest["coverage"]["unseen"] == []


def test_memory_stays_bounded(programs: Programs):
    """Hundreds of steps hold no more than a few: nothing is kept from step to step but strings."""
    ran = programs.run(
        """
        import resource, torch
        def main(mark):
            model = torch.nn.Linear(64, 64)
            optimizer = torch.optim.Adam(model.parameters())
            peaks = []
            for step in range(80):
                mark(step)
                for _ in range(4):
                    model(torch.randn(32, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            print(peaks[-1] - peaks[20])
        """
    )
    assert int(ran.stdout) < 30_000, ran.stdout  # KiB


def test_a_root_elsewhere_makes_the_working_directory_relative(programs: Programs):
    """``cwd`` is given below the tree."""
    programs.write("tree/jobs/train.py", "def main(): pass\n")
    ran = programs.again("train.py:main", cwd=str(programs.folder / "tree/jobs"), root=str(programs.folder / "tree"))
    assert ran.manifest["cwd"] == "jobs"
    assert os.sep not in ran.manifest["target"]
