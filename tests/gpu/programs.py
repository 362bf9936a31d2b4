"""Targets for two ranks with a GPU each, over NCCL; each rank prints a digest of what it computed."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
import torch
import torch.distributed as dist
from torch import nn

from opguard_ci import recipe

_WIDTH = 256


def _start() -> int:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    return rank


def _say(*held: Any) -> None:
    state = hashlib.sha256()
    for one in held:
        for tensor in [*one.parameters(), *one.buffers()] if isinstance(one, nn.Module) else [one]:
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            state.update(local.detach().cpu().contiguous().numpy().tobytes())
    os.write(1, f"rank {dist.get_rank()}: {state.hexdigest()}\n".encode())


def _network(eps: float = 1e-5) -> nn.Sequential:
    layers = nn.Linear(64, _WIDTH), nn.LayerNorm(_WIDTH, eps=eps), nn.GELU(), nn.Linear(_WIDTH, 8)
    return nn.Sequential(*layers).cuda()


def _train(model: nn.Module, rank: int) -> Iterator[dict[str, Any]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        loss = model(torch.randn(32, 64, generator=generator).cuda()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        _say(model, loss)
        yield {"loss": loss, "model": model, "optimizer": optimizer}
    dist.destroy_process_group()


@recipe(steps=3, ranks=2)
def ddp() -> Iterator[dict[str, Any]]:
    """Data parallel with several buckets; ``eps`` gives rank 1 another one."""
    rank = _start()
    model = _network(1e-3 if rank == 1 and "eps" in sys.argv else 1e-5)
    yield from _train(nn.parallel.DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=0.02), rank)


@recipe(steps=3, ranks=2)
def fsdp() -> Iterator[dict[str, Any]]:
    """FSDP2: parameters gathered and gradients scattered on streams of their own."""
    from torch.distributed.fsdp import fully_shard

    rank = _start()
    model = _network()
    fully_shard(model[0])
    yield from _train(fully_shard(model), rank)


def collectives() -> None:
    """One of each kind, waited for and not, and functional ones."""
    import torch.distributed._functional_collectives as functional

    rank = _start()
    x = torch.arange(1000, device="cuda", dtype=torch.float32) * (rank + 1)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    y = torch.ones(5, device="cuda") + rank
    work.wait()
    gathered = [torch.empty_like(y) for _ in range(2)]
    dist.all_gather(gathered, y)
    into = torch.empty(10, device="cuda")
    dist.all_gather_into_tensor(into, y)
    part = torch.empty(500, device="cuda")
    dist.reduce_scatter_tensor(part, x)
    dist.broadcast(part, 0)
    given = torch.empty_like(into)
    dist.all_to_all_single(given, into)
    if rank == 0:
        dist.send(given, 1)
    else:
        dist.recv(given, 0)
    waited = functional.all_reduce(y, "sum", dist.group.WORLD) + 1
    _say(x, y, *gathered, into, part, given, waited)
    dist.destroy_process_group()
