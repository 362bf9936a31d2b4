"""A trace is the same whether values are there at once or only at the end of the step.

Here memory of the host is treated as that of a device, so that every value is a handle until then.
"""

from __future__ import annotations

import itertools
import json

import pytest

from opguard_ci.capture.fingerprint import cpu, mix64
from opguard_ci.trace.model import ASSUMED, KINDS, OVER, UNREAD, Read

from .running import Programs, Ran

AS_ON_A_DEVICE = """
from opguard_ci.capture.fingerprint import tensors

_kind_of = tensors._kind_of
tensors._kind_of = lambda tensor: _kind_of(tensor) or tensors._DEVICE
tensors._kinds.clear()
"""

TRAINING = """
import torch
from torch import nn


def main():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(144, 5)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(6, 3, 8, 8)), torch.randint(0, 5, (6,)))
        loss.backward()
        optimizer.step()
    return {"answer": model(torch.ones(6, 3, 8, 8))}
"""

MEMORY = """
import ctypes
import numpy as np
import torch


def main(mark):
    array = np.zeros(100, np.float32)
    mine = torch.from_numpy(array)
    state = torch.zeros(1000)
    for step in range(3):
        mark(step)
        array += 1
        x = mine * 2
        state.add_(1)
        state[10:20] = 7
        y = (state * 3).reshape(10, 100).t()
        state.numpy()[500] = step + 0.5
        z = state[400:600] + state[:200]
        fresh = torch.empty(64)
        ctypes.memset(fresh.data_ptr(), step + 60, 256)
        w = fresh.exp()
        torch.ones(64).resize_(80)
        y.contiguous()[::2, ::3].mul_(2)
        torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (3,)) * 2
        with_gap = torch.zeros(8, 8)[:, ::2]
        with_gap += x[0]
    return {"z": z, "w": w, "nothing": torch.zeros(0), "conjugate": torch.ones(3, dtype=torch.complex64).conj()}
"""

THREADS = """
import threading
import torch


def main(mark):
    for step in range(3):
        mark(step)
        def work():
            x = torch.full((50,), float(step))
            for _ in range(20):
                x = x * 1.5 + 1
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        x = torch.arange(600.0, requires_grad=True)
        (x.sin() * x).sum().backward()
"""

COMPILED = """
import os

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
import torch
from torch import nn


def main():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    compiled = torch.compile(model)
    for _ in range(3):
        loss = compiled(torch.randn(5, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

LOOKS = """
import ctypes
import numpy as np
import torch

@torch.library.custom_op("late::spoil", mutates_args=())
def spoil(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.clone()

def poke(t):
    ctypes.memmove(t.data_ptr(), (ctypes.c_float * 1)(9.0), 4)

def used(x):
    for _ in range(4):
        x.exp()
    return x

def main(mark):
    kept = used(torch.ones(8) * 2)
    mine = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    for step in range(3):
        mark(step)
        x = used(torch.ones(8) * 2)
        x.exp()
        x.add_(1)
        x.exp()
        x[:4].add_(1)
        x.exp()
        x[2:6].exp()
        x.view(2, 4).exp()
        x.view(2, 4).t().exp()
        x.view(2, 4).t().exp()
        x.numpy()
        x.exp()
        torch.from_numpy(np.ones(8, np.float32)).exp()
        mine.exp()
        kept.exp()
        y = x * 3
        y.clone()
        poke(y)
        y.exp()
        torch.autograd.graph.increment_version(y)
        y.exp()
        y.cos()
        z = y * 2
        poke(z)
        z.clone()
        for _ in range(3):
            z.exp()
            z[:3].exp()
            torch.ops.late.spoil(z)
            z[:3].exp()
        with torch.inference_mode():
            w = x * 3
            w.exp()
        parts = list(torch.zeros(12).chunk(3))
        torch._foreach_add_(parts, 1)
        torch._foreach_exp(parts)
        torch._foreach_exp(parts)
        poke(kept)
"""

LEVELS = (("training", "full"), ("memory", "full"), ("threads", "full"), ("compiled", "full"))
LEVELS += (("training", "op"), ("memory", "op"), ("looks", "op"))
PROGRAMS = {"looks": LOOKS, "training": TRAINING, "memory": MEMORY, "threads": THREADS, "compiled": COMPILED}


def flags(read: Read) -> int:
    """The flags of a read; where bytes changed unseen, that is known too late to look at them again from there on."""
    return read.flags & ~ASSUMED if read.flags & OVER else read.flags


def comparable(ran: Ran) -> tuple[list[object], list[int]]:
    """All that a trace says but its values, and these in order."""
    facts: list[object] = []
    values: list[int] = []
    for event in itertools.chain.from_iterable(table.events() for table in ran.trace.steps()):
        place = (event.index, event.step, event.lane, event.phase, event.kind, event.op, event.module, event.stack)
        reads = [(read.spec, flags(read), read.writers, read.value == 0) for read in event.reads]
        writes = [(write.spec, write.flags, write.slot, write.value == 0) for write in event.writes]
        facts.append((place, event.args, event.key, event.flags, event.draw, reads, writes))
        values += [read.value for read in event.reads] + [write.value for write in event.writes]
    return facts, values


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_late_values_give_the_same_trace(name: str, level: str, programs: Programs):
    """Links, marks and hidden writes are those of values that are there at once; equal values stay equal."""
    source = PROGRAMS[name]
    at_once, late = programs.run(source, level=level), programs.run(source + AS_ON_A_DEVICE, level=level)
    assert at_once.ok, at_once.answer
    assert late.ok, late.answer
    assert not late.answer["coverage"]["unseen"]
    facts, values = comparable(at_once)
    late_facts, late_values = comparable(late)
    assert facts == late_facts
    assert (level == "op") == any(read.flags & ASSUMED for event in late.events() for read in event.reads)
    pairs = set(zip(values, late_values, strict=True))
    assert len(pairs) == len(set(values)) == len(set(late_values))
    assert at_once.manifest["scheme"] == cpu.SCHEME
    assert late.manifest["scheme"] == f"{cpu.SCHEME}+{mix64.SCHEME}"


ARRIVES = """
        if step == 1:
            import gc
            from opguard_ci.capture.fingerprint.cuda import DeviceFingerprints
            for held in gc.get_objects():
                if isinstance(held, DeviceFingerprints):
                    held.used = True
"""


@pytest.mark.parametrize("name", ["looks", "memory"])
def test_a_device_may_come_into_use_at_any_time(name: str, programs: Programs):
    """From there on links of the host's memory are worked out late too; a look may be made that was not needed."""
    source = PROGRAMS[name].replace("        poke(kept)\n", "")  # found earlier by a look that was not needed
    at_once = programs.run(source, level="op")
    late = programs.run(source.replace("        mark(step)\n", f"        mark(step)\n{ARRIVES}", 1), level="op")
    assert late.ok, late.answer
    assert not late.answer["coverage"]["unseen"]
    for mine, theirs in zip(at_once.events(), late.events(), strict=True):
        assert (mine.op, mine.step, mine.args, mine.writes) == (theirs.op, theirs.step, theirs.args, theirs.writes)
        for left, right in zip(mine.reads, theirs.reads, strict=True):
            assert (left.value, left.spec, left.writers) == (right.value, right.spec, right.writers)
            assert left.flags & ~ASSUMED == right.flags & ~ASSUMED
            assert left.flags & (ASSUMED | OVER) or not right.flags & ASSUMED


def test_late_values_in_a_window(programs: Programs):
    """Memory is met anew where a window begins and ends, when all that waits for values was worked out."""
    window = {"level": "op", "from_step": 1, "to_step": 2}
    at_once, late = (programs.run(TRAINING + more, **window) for more in ("", AS_ON_A_DEVICE))
    assert late.ok, late.answer
    assert {event.step for event in late.events()} == {1, 2}
    facts, values = comparable(at_once)
    late_facts, late_values = comparable(late)
    assert facts == late_facts
    assert len(set(zip(values, late_values, strict=True))) == len(set(values)) == len(set(late_values))


COUNTING = """
from opguard_ci.capture.fingerprint.cuda import DeviceFingerprints

counts, end_step = [0], DeviceFingerprints.end_step


def counting(fingerprints):
    counts[-1] += sum(len(page) for device in fingerprints._devices.values() for page in device.used)
    return end_step(fingerprints)


def counted(mark, step):
    DeviceFingerprints.end_step = counting
    for number in range(7):
        mark(number)
        counts.append(0)
        step()
    mark(7)
    print(counts[1:])
"""

COUNTED = f"""
import torch
{COUNTING}

def main(mark):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 8)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    counted(mark, step)
"""


def check_counts(ran: Ran) -> None:
    """From the sixth step on, inputs are assumed, and as much was hashed as has a value in the trace."""
    hashed = json.loads(ran.stdout)
    for step in (5, 6):
        events = ran.events(step=step, kinds=KINDS)
        reads = [read for event in events if event.kind not in ("contract", "copy") for read in event.reads]
        assert all(read.flags & (ASSUMED | UNREAD) for read in reads)
        contract = sum("[" in read.spec for event in events if event.kind == "contract" for read in event.reads)
        written = sum(write.value != 0 for event in events if event.kind != "view" for write in event.writes)
        without = sum(write.value == 0 or event.kind == "view" for event in events for write in event.writes)
        assert contract + written <= hashed[step] <= contract + written + without


def test_level_op_hashes_outputs_alone(programs: Programs):
    """Once every operator was called four times, what is hashed are the outputs and the contract, and no input."""
    ran = programs.run(COUNTED + AS_ON_A_DEVICE, level="op")
    assert ran.ok, ran.answer
    check_counts(ran)


KEPT = """
import weakref
import torch


def main():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        hidden = model(torch.ones(4, 8))
        loss = hidden.square().sum()
        loss.backward()
        optimizer.step()
        held = [weakref.ref(t) for t in (hidden, loss, model.weight.grad, model.bias.grad)]
        optimizer.zero_grad()
        del hidden, loss
        print([ref() is None for ref in held])
"""


def test_nothing_is_kept_alive(programs: Programs):
    """Values, and not tensors, wait for the end of the step."""
    ran = programs.run(KEPT + AS_ON_A_DEVICE)
    assert ran.stdout.split("\n") == [str([True] * 4)] * 3 + [""]


def test_a_run_that_raises_keeps_all_ended_steps(programs: Programs):
    """Values on their way are waited for when the target fails."""
    failing = TRAINING.replace("    return", "    raise ValueError('no')\n    return") + AS_ON_A_DEVICE
    ran = programs.run(failing)
    assert ran.answer["slug"] == "target-raised"
    assert ran.steps == [0, 1, 2, 3]


def test_a_limit_of_steps_writes_them_all(programs: Programs):
    """The last step is written though no other ends after it."""
    ran = programs.run(TRAINING + AS_ON_A_DEVICE, steps=2)
    assert ran.ok
    assert ran.steps == [0, 1]
    assert programs.run(TRAINING + AS_ON_A_DEVICE).digests[:2] == ran.digests
