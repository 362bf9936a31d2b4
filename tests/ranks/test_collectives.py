"""Collectives are recorded with what they gave, and recording them changes nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.rpc

from opguard_ci.capture.compiled import compiled_graph
from opguard_ci.capture.session import Session
from opguard_ci.compare import compare_traces

from .conftest import Ranks


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("ddp", ()),
        ("ddp", ("views",)),
        ("ddp", ("hook",)),
        ("fsdp", ()),
        ("tensor_parallel", ()),
        ("collectives", ()),
        ("objects", ()),
    ],
)
def test_captured_is_bare(ranks: Ranks, bare: Ranks, name: str, argv: tuple[str, ...]) -> None:
    """A captured run computes the bits of a bare one in every rank, everything is seen, and it repeats itself."""
    ran, again, alone = ranks.run(name, *argv), ranks.run(name, *argv), bare.run(name, *argv)
    assert ran.result.status == "ok", ran.outcome
    assert ran.lines == alone.lines
    assert {line[:6] for line in ran.lines} == {"rank 0", "rank 1"}
    coverage = ran.trace.manifest["coverage"]
    assert (coverage["unhashed"], coverage["unseen"]) == ([], [])
    assert compare_traces(ran.trace, again.trace).verdict == "identical"
    for rank in range(2):
        assert not any(event.op.startswith("profiler.") for event in ran.events(rank))


def test_compiled_graphs_that_communicate(ranks: Ranks, bare: Ranks) -> None:
    """A collective in a graph is part of its event; what a rank received through one is told from what it did."""
    ran, alone, other = ranks.run("compiled"), bare.run("compiled"), ranks.run("compiled", "other")
    assert ran.result.status == "ok", ran.outcome
    assert ran.lines == alone.lines
    (mixed, *_) = ran.events(0, "inductor.forward")
    assert mixed.args.endswith("collectives=True")
    assert len(ran.events(0, "inductor.forward")) == 2 * 2
    assert len(ran.events(0, "inductor.backward")) == 2
    first = compare_traces(ran.trace, other.trace).first_divergence
    assert first is not None
    assert (first["step"], first["rank"], first["op"]) == (1, 1, "aten.sin.default")
    assert (first["cause"], first["received_by"]) == ("code", [0])


def test_objects_that_ranks_tell_each_other(ranks: Ranks) -> None:
    """Where they are used is named, and who told something else."""
    verdict = compare_traces(ranks.run("objects").trace, ranks.run("objects", "other").trace)
    first = verdict.first_divergence
    assert first is not None
    assert (first["op"], first["cause"], first["ranks"]) == ("aten.mul.Tensor", "arguments", [0, 1])
    assert [note[:46] for note in verdict.notes if "bytes" in note] == [
        "Rank 1 gave other bytes to c10d.allgather_.def"
    ]


def test_collectives_have_their_place(ranks: Ranks) -> None:
    """A collective is one event with its group, reduction and result, in the same order in all ranks."""
    ran = ranks.run("collectives")
    by_rank = [ran.events(rank, "c10d.", "_c10d_functional.") for rank in range(2)]
    keys = [{event.key for event in events if "from" not in (event.key or "")} for events in by_rank]
    assert keys[0] == keys[1]
    assert "0 of 0, 1 #0" in keys[0]
    assert "1 of 0, 1 #0" in keys[0]
    first = [next(event for event in events if event.key == "0 of 0, 1 #0") for events in by_rank]
    assert first[0].reads[0].value != first[1].reads[0].value
    assert first[0].writes[0].value == first[1].writes[0].value
    assert "reduce_op='SUM'" in first[0].args
    sent, received = (next(e for e in events if "from 0" in (e.key or "")) for events in by_rank)
    assert (sent.op, received.op) == ("c10d.send.default", "c10d.recv_.default")
    assert sent.reads[0].value == received.writes[0].value
    waited = next(event for event in by_rank[0] if event.op == "_c10d_functional.all_reduce.default")
    assert waited.writes[0].value
    assert not any("wait_tensor" in event.op for event in by_rank[0])


def test_collectives_that_are_not_seen_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs inside compiled graphs is a note; what rpc runs for others makes the coverage incomplete."""
    session = Session(str(tmp_path), lambda table: None)
    graph = SimpleNamespace(source_code="torch.ops._c10d_functional.all_reduce.default(…)")
    compiled_graph(session, lambda graph, inputs: [inputs[0] * 2])(graph, [torch.ones(2)])
    assert any("inside compiled graphs" in note for note in session.notes)
    monkeypatch.setattr(torch.distributed.rpc, "_is_current_rpc_agent_set", lambda: True)
    session.look_at_children()
    assert session.unseen == {"what torch.distributed.rpc ran for other processes"}
