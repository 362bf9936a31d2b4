"""Levels: what is looked at, what is taken from the links, and when ``auto`` goes over to ``op``."""

from __future__ import annotations

import pytest

from opguard_ci.capture.session import BYTES_OF_AUTO
from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import ASSUMED, HIDDEN, OVER

from .running import Programs, Ran

START = """
import ctypes
import numpy as np
import torch
from torch import nn

@torch.library.custom_op("levels::spoil", mutates_args=())
def spoil(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.clone()

def poke(t):
    ctypes.memmove(t.data_ptr(), (ctypes.c_float * 1)(9.0), 4)

def used(x):
    for _ in range(4):
        x.exp()
    return x
"""


def run(programs: Programs, body: str, level: str = "op") -> Ran:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    ran = programs.run(f"{START}\ndef main():\n{lines}\n", level=level)
    assert ran.ok, ran.answer
    assert ran.manifest["coverage"]["unseen"] == []
    return ran


def last_exp(ran: Ran) -> int:
    return ran.events("aten.exp")[-1].reads[0].flags


TRAINING = """
model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(4, 6)
    q, k = model(x).chunk(2, dim=1)[0], x[:, :2].t()
    loss = (q @ k).tanh().sum() + x.as_strided((3, 2), (5, 1)).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_a_training_has_the_same_values_at_both_levels(programs: Programs):
    """Views, transposes, optimizer, running statistics: equal digests, though most inputs were not looked at."""
    full, op = run(programs, TRAINING, "full"), run(programs, TRAINING)
    assert full.digests == op.digests
    assert (full.manifest["level"], op.manifest["level"]) == ("full", "op")
    reads = [read for event in op.events(step=2) for read in event.reads]
    assert sum(bool(read.flags & ASSUMED) for read in reads) > len(reads) / 2
    assert not any(read.flags & ASSUMED for event in full.events() for read in event.reads)
    assert compare_traces(full.trace, op.trace).verdict == "identical"


@pytest.mark.parametrize(
    ("body", "assumed"),
    [
        ("x = used(torch.ones(8) * 2)\nx.exp()", True),
        ("x = used(torch.ones(8) * 2)\nx.add_(1)\nx.exp()", True),
        ("x = used(torch.ones(8) * 2)\nx[:4].add_(1)\nx.exp()", False),  # another geometry was written
        ("x = used(torch.ones(8) * 2)\nx.view(2, 4).exp()", True),
        ("x = used(torch.ones(8) * 2)\nx.view(2, 4).t().exp()", True),  # the view was looked at
        ("x = used(torch.from_numpy(np.ones(8, np.float32)))\nx.exp()", False),
        ("x = used(torch.ones(8) * 2)\nx.numpy()\nx.exp()", False),
        ("x = used(torch.empty(8))\nx.exp()", False),
        ("x = used(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))\nx.exp()", False),  # no recorded operator wrote it
        ("x = used(torch.ones(8) * 2)\nwith torch.inference_mode():\n    y = x * 3\n    y.exp()", True),
    ],
)
def test_what_is_assumed(body: str, assumed: bool, programs: Programs):
    """An input is looked at unless a recorded operator left it as it is seen, and nobody else may have it."""
    assert bool(last_exp(run(programs, body)) & ASSUMED) == assumed


def test_first_calls_and_custom_operators_are_looked_at(programs: Programs):
    """They are hashed again after the call too, so that hidden writes are found at level op."""
    ran = run(programs, "x = torch.ones(8) * 2\nfor _ in range(6):\n    x.cos()\n    torch.ops.levels.spoil(x)")
    assert [bool(event.reads[0].flags & ASSUMED) for event in ran.events("aten.cos")] == 4 * [False] + 2 * [True]
    spoils = ran.events("levels.spoil")
    assert all(any(write.flags & HIDDEN for write in event.writes) for event in spoils)


def test_a_write_by_address_is_found_at_the_end_of_the_step(programs: Programs):
    """Until then the parameter's readers are recorded as if they had read what was written last."""
    body = """
p = nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([p], lr=0.5)
for step in range(3):
    optimizer.zero_grad()
    used(p.detach())
    if step == 2:
        poke(p)
    (p.exp() * 2).sum().backward()
    optimizer.step()
"""
    ran = run(programs, body)
    assert last_exp(ran) & ASSUMED
    held = run(programs, body.replace("        poke(p)", "        poke(p.exp().mul(1))"))
    found = compare_traces(held.trace, ran.trace)
    assert found.first_divergence is not None
    causes = {found.first_divergence["cause"], *found.first_divergence.get("one_of", ())}
    assert "overwritten" in causes and found.first_divergence["step"] == 2
    assert any("Level op" in note for note in found.notes)


def test_a_write_by_address_to_what_is_kept_is_found_late(programs: Programs):
    """A contract tensor that no operator writes afterwards carries the mark."""
    ran = run(
        programs,
        "m = nn.BatchNorm1d(4, track_running_stats=True)\nw = nn.Parameter(torch.ones(4))\n"
        "o = torch.optim.SGD([w], lr=1.0)\nm.register_buffer('b', torch.ones(8) * 2)\nused(m.b)\npoke(m.b)\nm.b.exp()\n"
        "(m(torch.ones(3, 4) * w)).sum().backward()\no.step()",
    )
    assert last_exp(ran) & (ASSUMED | OVER) == ASSUMED
    (entry,) = [event for name, event in ran.contract("buffer", step=0).items() if name.endswith(".b")]
    assert entry.reads[0].flags & OVER


def test_a_version_counter_that_moved_is_followed_by_a_look(programs: Programs):
    """A function in C wrote a tensor and said so, as it should: nobody recorded it, but torch counted it."""
    counted = "\ntorch.autograd.graph.increment_version(x)"
    for said in ("", counted):
        ran = run(programs, f"x = used(torch.ones(8) * 2)\npoke(x){said}\nx.exp()\nx.cos()")
        assert last_exp(ran) & (OVER | ASSUMED) == (OVER if said else ASSUMED)


def test_a_copy_shows_what_it_read(programs: Programs):
    """The value that a copy made is what its source was, so a write by address is found there."""
    ran = run(programs, "x = torch.ones(8) * 2\nfor _ in range(5):\n    x.clone()\npoke(x)\nx.clone()")
    clean, found = (event.reads[0] for event in ran.events("aten.clone")[-2:])
    assert not clean.flags & (ASSUMED | OVER)
    assert found.flags & (ASSUMED | OVER) == OVER
    assert found.value == ran.events("aten.clone")[-1].writes[0].value != clean.value


AUTO = f"""
x = torch.ones({BYTES_OF_AUTO // 16})
small = torch.ones(8) * 2
used(used(small))
{{}}
small.exp()
"""


@pytest.mark.parametrize(
    ("reads", "level"), [("for _ in range(3): x.sum()", "full"), ("for _ in range(5): x.sum()", "op")]
)
def test_auto_counts_the_bytes_that_a_step_reads(reads: str, level: str, programs: Programs):
    """Beyond a fixed number the rest of the run is recorded at level op, and the trace says so."""
    ran = run(programs, AUTO.format(reads), "auto")
    assert ran.manifest["level"] == level
    assert bool(last_exp(ran) & ASSUMED) == (level == "op")
    assert any("Level auto became op in step 0" in note for note in ran.manifest["notes"]) == (level == "op")


def test_auto_counts_each_step_for_itself(programs: Programs):
    """Many small steps stay at level full."""
    body = f"""
x = torch.ones({BYTES_OF_AUTO // 16})
p = nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([p], lr=0.5)
for _ in range(3):
    x.sum(); x.sum()
    p.sum().backward()
    optimizer.step()
"""
    assert run(programs, body, "auto").manifest["level"] == "full"
