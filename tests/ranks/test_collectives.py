"""Collectives are recorded with what they gave, and recording them changes nothing."""

from __future__ import annotations

import pytest

from opguard_ci.compare import compare_traces

from .conftest import Ranks


@pytest.mark.parametrize(
    ("name", "argv"),
    [("ddp", ()), ("ddp", ("views",)), ("ddp", ("hook",)), ("fsdp", ()), ("tensor_parallel", ()), ("collectives", ())],
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
