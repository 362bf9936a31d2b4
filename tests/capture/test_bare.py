"""Watching changes nothing: a captured run computes the bits of a bare one."""

from __future__ import annotations

import pytest

from .running import Programs

DIGEST = """
import hashlib
import torch

def digest(*held):
    state = hashlib.sha256()
    def take(value):
        if isinstance(value, torch.Tensor):
            state.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, torch.nn.Module):
            for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
                state.update(name.encode())
                take(tensor)
                if isinstance(tensor, torch.nn.Parameter) and tensor.grad is not None:
                    take(tensor.grad)
        elif isinstance(value, torch.optim.Optimizer):
            take(value.state_dict())
        elif isinstance(value, dict):
            for key, item in value.items():
                state.update(repr(key).encode())
                take(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                take(item)
        elif hasattr(value, "state_dict"):
            take(value.state_dict())
        else:
            state.update(repr(value).encode())
    for one in held:
        take(one)
    take(torch.default_generator.get_state())
    return state.hexdigest()
"""

RECIPES = ("conv_net", "encoder_bf16", "lstm", "mixture", "tiny_gpt")

RECIPE = (
    DIGEST
    + """
import importlib, itertools, sys
def main():
    name = sys.argv[1]
    for held in itertools.islice(getattr(importlib.import_module("opguard_ci.recipes." + name), name)(), 4):
        print(digest(held))
"""
)

THREADED = (
    DIGEST
    + """
import threading
from concurrent.futures import ThreadPoolExecutor
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.manual_seed(3)
    torch.set_num_threads(2)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    data = TensorDataset(torch.randn(24, 8), torch.randint(0, 4, (24,)))
    losses = []
    with ThreadPoolExecutor(2) as pool:
        for x, y in DataLoader(data, 8, shuffle=True, num_workers=2):
            halves = list(pool.map(lambda part: part * 2 - 1, x.chunk(2)))
            loss = nn.functional.cross_entropy(model(torch.cat(halves)), y)
            optimizer.zero_grad()
            worker = threading.Thread(target=loss.backward)
            worker.start()
            worker.join()
            optimizer.step()
            losses.append(loss)
    print(digest(losses, model, optimizer))
"""
)

COMPILED = (
    DIGEST
    + """
import os
from torch import nn
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

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
        print(digest(loss, model, optimizer))
    counters = torch._dynamo.utils.counters
    print(counters["stats"]["unique_graphs"], counters["frames"]["ok"])
"""
)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("profile", ["strict", "observe"])
def test_a_recipe_computes_the_same_bits_watched_or_not(
    name: str, profile: str, programs: Programs, strict_programs: Programs
):
    """Losses, gradients, parameters, optimizer and generator states of every step, at both levels and profiles."""
    chosen = strict_programs if profile == "strict" else programs
    source = RECIPE if profile == "strict" else RECIPE.replace("    name =", "    torch.manual_seed(1)\n    name =")
    bare = chosen.run(source, argv=(name,), bare=True)
    assert len(set(bare.stdout.split())) == 4, bare.stderr
    for level in ("full", "contract"):
        assert chosen.run(source, argv=(name,), level=level).stdout == bare.stdout


@pytest.mark.parametrize("source", [THREADED, COMPILED], ids=["threads", "compiled"])
def test_threads_workers_and_compiled_code_compute_the_same_bits(source: str, programs: Programs):
    """A pool, a backward in a thread, loader workers; inductor, which is not switched off either."""
    bare = programs.run(source, bare=True)
    assert bare.stdout.strip(), bare.stderr
    for level in ("full", "contract"):
        captured = programs.run(source, level=level)
        assert captured.ok, captured.answer
        assert captured.stdout == bare.stdout


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_repeats_itself_twenty_times(name: str, strict_programs: Programs):
    """Every digest of every step, operators included."""
    target = f"opguard_ci.recipes.{name}:{name}"
    first = strict_programs.again(target)
    assert len(first.steps) == 4
    assert first.manifest["coverage"]["unhashed"] == first.manifest["coverage"]["unseen"] == []
    for _ in range(19):
        assert strict_programs.again(target).digests == first.digests
