"""Distributed runs are compared rank by rank, and the rank in which it began is named."""

from __future__ import annotations

import pytest

from opguard_ci.compare import compare_traces

from .conftest import Ranks


def test_a_change_in_one_rank(ranks: Ranks) -> None:
    """Another eps in rank 1 alone is found there, at the operator; rank 0 is listed as a receiver."""
    verdict = compare_traces(ranks.run("ddp").trace, ranks.run("ddp", "eps=1").trace)
    first = verdict.first_divergence
    assert verdict.verdict == "diverged"
    assert first is not None
    assert (first["rank"], first["ranks"], first["received_by"], first["step"]) == (1, [1], [0], 0)
    assert (first["cause"], first["op"]) == ("arguments", "aten.native_layer_norm.default")
    assert first["detail"] == "eps 1e-05 -> 0.001"
    assert any(note.startswith("Rank 0 only received it, through c10d.allreduce_.default") for note in verdict.notes)


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_four_ranks(ranks: Ranks, bare: Ranks, name: str) -> None:
    """With four ranks a captured run has the bits of a bare one, and the rank that departs is named, first or last."""
    reference = ranks.run(name, ranks=4)
    assert reference.lines == bare.run(name, ranks=4).lines
    for rank in (0, 3):
        verdict = compare_traces(reference.trace, ranks.run(name, f"eps={rank}", ranks=4).trace)
        first = verdict.first_divergence
        assert first is not None
        others = [other for other in range(4) if other != rank]
        assert (first["rank"], first["ranks"], first["received_by"], first["step"]) == (rank, [rank], others, 0)
        assert (first["cause"], first["op"]) == ("arguments", "aten.native_layer_norm.default")
        assert sum(note.startswith("Rank ") and "only received it" in note for note in verdict.notes) == 3


def test_another_reduction(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reduction is a change of arguments of the collective, in all ranks."""
    reference = ranks.run("collectives")
    monkeypatch.setenv("REDUCE", "MAX")
    verdict = compare_traces(reference.trace, ranks.run("collectives").trace)
    first = verdict.first_divergence
    assert first is not None
    assert (first["cause"], first["op"], first["ranks"]) == ("arguments", "c10d.allreduce_.default", [0, 1])
    assert first["detail"] == "reduce_op 'SUM' -> 'MAX'"
