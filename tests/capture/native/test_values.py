"""The compiled recorder reads a view as the Python fingerprint does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from opguard_ci.capture.fingerprint import cpu
from opguard_ci.capture.recorder import Recorder
from opguard_ci.capture.session import Session
from opguard_ci.trace.model import StepTable


def random_view(rng: random.Random) -> torch.Tensor:
    """A tensor with its axes in another order, perhaps with holes, of sizes around those of blocks and pieces."""
    dtype = rng.choice((torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128))
    shape = [rng.choice((1, 2, 3, 15, 16, 17, 31, 33, 48)) for _ in range(rng.choice((2, 2, 3, 4)))]
    if rng.random() < 0.1:
        shape = [rng.choice((512, 700)), rng.choice((1, 3)), rng.choice((512, 600))]
    view = torch.randint(0, 255, shape).to(dtype)
    view = view.permute(rng.sample(range(len(shape)), len(shape)))
    if rng.random() < 0.3:
        axis = rng.randrange(len(shape))
        view = view.narrow(axis, view.shape[axis] // 3, view.shape[axis] - view.shape[axis] // 3)
    if rng.random() < 0.2:
        view = view[..., :: rng.choice((2, 3))]
    return view


def values_read(compiled: Any, tensors: list[torch.Tensor]) -> list[int]:
    """What the compiled recorder says that an operator read of each."""
    tables: list[StepTable] = []
    session = Session("/nowhere", tables.append, compiled=compiled)
    with Recorder(session):
        for tensor in tensors:
            tensor.sum()
    session.close()
    return [event.reads[0].value for event in tables[0].events() if event.op.startswith("aten.sum")]


@pytest.mark.parametrize("seed", range(4))
def test_views(compiled: Any, seed: int):
    """Whatever their strides, dtype and size."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    views = [random_view(rng) for _ in range(40)]
    assert values_read(compiled, views) == [of_any(view) for view in views]


def test_sizes(compiled: Any):
    """Of bytes in one piece, around those of stripes, blocks of them and long inputs."""
    data = torch.randint(0, 255, ((1 << 20) + 64,), dtype=torch.uint8)
    sizes = [near + more for near in (240, 1024, 1 << 16, 1 << 20) for more in (-1, 0, 1, 17, 63, 64)]
    pieces = [data[size % 5 :][:size] for size in sizes]
    assert values_read(compiled, pieces) == [of_any(piece) for piece in pieces]


def of_any(tensor: torch.Tensor) -> int:
    """What the Python fingerprint says."""
    plain = tensor.clone(memory_format=torch.contiguous_format).flatten()
    return cpu.of_bytes(plain.view(torch.uint8).numpy().tobytes(), tensor.dtype)
