"""Targets for several ranks; each prints a digest of what its rank computed.

They leave their process groups to the end of the process: gloo's destructor waits for a thread that may wait for the
interpreter's lock.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from opguard_ci import recipe


def start() -> int:
    """Join the others; the number of this rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank()


def say(*parts: object) -> None:
    """A line of this rank, in one piece."""
    os.write(1, (" ".join(map(str, (f"rank {dist.get_rank()}:", *parts))) + "\n").encode())


def digest(*held: Any) -> str:
    """A digest of modules and tensors, bit for bit."""
    state = hashlib.sha256()
    for one in held:
        for tensor in [*one.parameters(), *one.buffers()] if isinstance(one, nn.Module) else [one]:
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            state.update(local.detach().contiguous().numpy().tobytes())
    return state.hexdigest()


def network(rank: int = -1) -> nn.Sequential:
    """With another eps in a rank that the arguments name."""
    eps = 1e-3 if f"eps={rank}" in sys.argv else 1e-5
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16, eps=eps), nn.ReLU(), nn.Linear(16, 4))


class Layers(nn.Module):
    """Two matrices, for which inductor has to generate no code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(batch))


def batches(rank: int, steps: int = 3) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        yield torch.randn(4, 8, generator=generator)


@recipe(steps=3, ranks=2)
def ddp() -> Iterator[dict[str, Any]]:
    """Data parallel, with as many buckets as layers."""
    rank = start()
    model = nn.parallel.DistributedDataParallel(
        network(rank), bucket_cap_mb=0.0002, gradient_as_bucket_view="views" in sys.argv
    )
    if "hook" in sys.argv:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in batches(rank):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(digest(model, loss))
        yield {"loss": loss, "model": model, "optimizer": optimizer}


def fsdp() -> None:
    """Sharded, as a plain function."""
    from torch.distributed.fsdp import fully_shard

    rank = start()
    model = network(rank)
    for layer in (model[0], model[3]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in batches(rank):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say(digest(model))


def tensor_parallel() -> None:
    """Operators on DTensors, and functional collectives between them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    start()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(0):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say(digest(model))


def compiled() -> None:
    """A collective within a graph, and a model that dynamo compiles for DDP."""
    import torch.distributed._functional_collectives as functional

    @torch.compile
    def mix(batch: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(batch @ weight, "sum", dist.group.WORLD) @ weight

    rank = start()
    layers = Layers()
    model = torch.compile(nn.parallel.DistributedDataParallel(layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches(rank, 2)):
        if rank == 1 and step == 1 and "other" in sys.argv:
            batch = batch.sin()
        with torch.no_grad():
            mixed = mix(batch, torch.ones(8, 8))
        model(mixed).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say(digest(layers, mixed), torch._dynamo.utils.counters["stats"]["unique_graphs"])


def collectives() -> None:
    """One of each kind, waited for in every way; the sum of all ranks ends in a parameter."""
    import torch.distributed._functional_collectives as functional

    rank, size = start(), dist.get_world_size()
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    mine = torch.arange(4.0) + rank
    total = mine.clone()
    dist.all_reduce(total, op=getattr(dist.ReduceOp, os.environ.get("REDUCE", "SUM")))
    later = mine.clone()
    work = dist.all_reduce(later, async_op=True)
    gathered = torch.empty(4 * size)
    dist.all_gather_into_tensor(gathered, mine)
    parts = [torch.empty(4) for _ in range(size)]
    dist.all_gather(parts, mine)
    work.wait()
    word = torch.full((4,), float(rank))
    dist.broadcast(word, src=1)
    if rank == 0:
        dist.send(mine * 3, dst=1)
    elif rank == 1:
        dist.recv(mine, src=0)
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(mine, group=group)
    dist.barrier()
    doubled = functional.all_reduce(word, "sum", dist.group.WORLD) * 2
    future = dist.all_reduce(word, async_op=True).get_future().then(lambda done: done.value()[0] * 0.5)
    half = future.wait()
    weight.grad = total + later + gathered.sum() + sum(parts) + word + mine + doubled + half
    optimizer.step()
    say(digest(weight, mine))


def objects() -> None:
    """What ranks tell each other as Python objects becomes a factor; rank 1 may be told to have another."""
    rank, size = start(), dist.get_world_size()
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    mine: Any = {"factor": 2.5 if rank and "other" in sys.argv else 1.5}
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, mine)
    box, here = [mine], [None]
    dist.broadcast_object_list(box, src=1)
    dist.gather_object(mine, [None] * size if rank == 0 else None, dst=0)
    dist.scatter_object_list(here, gathered, src=0)
    factor = sum(held["factor"] for held in [*gathered, *box, *here])
    (weight * factor).sum().backward()
    optimizer.step()
    say(digest(weight))


def _fail(how: str) -> None:
    rank = start()
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches(rank)):
        if rank == 1 and step == 1:
            if how == "raises":
                raise ValueError("bad batch")
            if how == "dies":
                os._exit(7)
            if how == "leaves":
                sys.exit(3)
            time.sleep(60)
        model(batch).square().mean().backward()
        optimizer.step()
    time.sleep(60)


def raises() -> None:
    _fail("raises")


def dies() -> None:
    _fail("dies")


def leaves() -> None:
    _fail("leaves")


def hangs() -> None:
    _fail("hangs")


def places() -> None:
    """What a rank finds around it."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID")
    names += ("CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK")
    dist.init_process_group("gloo")
    say(
        *(os.environ.get(name) for name in names), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    )
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0).step()
