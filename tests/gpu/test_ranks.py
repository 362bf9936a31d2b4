"""Two ranks with a GPU each, over NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from opguard_ci.compare import compare_traces
from opguard_ci.worker.servers import Server
from tests.ranks.conftest import Ranks

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def captured_server() -> Iterator[Server]:
    with Server.start("strict") as started:
        yield started


@pytest.fixture(scope="module")
def bare_server() -> Iterator[Server]:
    with Server.start("strict", entry="tests.ranks.entries:execute_bare") as started:
        yield started


@pytest.fixture
def ranks(captured_server: Server, tmp_path: Path) -> Ranks:
    """Captured runs."""
    return Ranks(captured_server, tmp_path, HERE)


@pytest.mark.parametrize("level", ["full", "op"])
@pytest.mark.parametrize("name", ["ddp", "fsdp", "collectives"])
def test_captured_is_bare(ranks: Ranks, bare_server: Server, tmp_path_factory, name: str, level: str) -> None:
    """A captured run computes the bits of a bare one in every rank, all is seen, and one more at level full agrees."""
    alone = Ranks(bare_server, tmp_path_factory.mktemp("bare"), HERE).run(name)
    ran, again = ranks.run(name, level=level), ranks.run(name, level="full")
    assert ran.result.status == "ok", ran.outcome
    assert alone.result.status == "ok", alone.outcome
    assert ran.lines == alone.lines
    assert {line[:6] for line in ran.lines} == {"rank 0", "rank 1"}
    coverage = ran.trace.manifest["coverage"]
    assert (coverage["unhashed"], coverage["unseen"]) == ([], [])
    assert ran.events(0, "c10d.", "_c10d_functional.", "c10d_functional.")
    assert compare_traces(ran.trace, again.trace).verdict == "identical"


def test_a_change_in_one_rank(ranks: Ranks) -> None:
    """Another eps in rank 1 alone is found there; rank 0 is listed as a receiver."""
    verdict = compare_traces(ranks.run("ddp").trace, ranks.run("ddp", "eps").trace)
    first = verdict.first_divergence
    assert verdict.verdict == "diverged"
    assert first is not None
    assert (first["rank"], first["ranks"], first["received_by"], first["step"]) == (1, [1], [0], 0)
    assert (first["cause"], first["op"]) == ("arguments", "aten.native_layer_norm.default")
    assert first["detail"] == "eps 1e-05 -> 0.001"
