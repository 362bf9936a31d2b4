from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from opguard_ci.compare import compare_traces
from opguard_ci.compare.collectives import Together, members
from opguard_ci.compare.picture import picture
from opguard_ci.compare.traces import side_of
from opguard_ci.compare.verdict import Verdict
from opguard_ci.errors import IncomparableError
from opguard_ci.trace.arrays import StepArrays
from opguard_ci.trace.model import OUTSIDE, Event, Read, StepInfo, Write
from opguard_ci.trace.ranks import merged

from .build import loss, op, read, trace
from .running import MemoryTrace

ALL = "0 of 0, 1"


class Distributed:
    """Runs of several ranks as one trace in memory."""

    def __init__(self, ranks: Sequence[MemoryTrace]) -> None:
        self._ranks = ranks
        parts = []
        for rank, one in enumerate(ranks):
            steps = [
                {"step": entry["step"], "events": entry["events"], "ranks": [None] * rank + [entry]}
                for entry in one.manifest["steps"]
            ]
            parts.append(
                {"objects": {}, "notes": [], **one.manifest, "ranks": len(ranks), "rank": rank, "steps": steps}
            )
        self.manifest = merged(parts, {"status": "ok"})

    def index(self, rank: int = 0) -> list[StepInfo]:
        return self._ranks[rank].index()

    def arrays(self, number: int, rank: int = 0) -> StepArrays:
        return self._ranks[rank].arrays(number)

    def numbers(self, value: int, spec: str, rank: int = 0) -> bytes | None:
        return self._ranks[rank].numbers(value, spec)


def collective(number: int, gave: Sequence[int | Read], got: Sequence[int | Write], where: str = ALL) -> Event:
    """The ``number``-th collective of a group, or message between two ranks."""
    return replace(
        op("allreduce_", gave, got, kind="collective"), op="c10d.allreduce_.default", key=f"{where} #{number}"
    )


def compare(reference: Sequence[Sequence[Event]], candidate: Sequence[Sequence[Event]], **manifest: Any) -> Verdict:
    """Compare two runs of one step, given by rank."""
    sides = [Distributed([trace(events, **manifest) for events in ranks]) for ranks in (reference, candidate)]
    return compare_traces(*sides)  # type: ignore[arg-type]


def said(verdict: Verdict) -> tuple[str, int, list[int], list[int], str]:
    """Cause, rank, ranks and receivers of the first divergence, and its operator."""
    first = verdict.first_divergence
    assert first is not None
    return first["cause"], first["rank"], first["ranks"], first["received_by"], first["op"]


def step_of(made: int, given: int = 10, total: int = 40, end: int = 50, **options: Any) -> list[Event]:
    """A rank that computes from a batch, sums with the others, and computes the loss from the sum."""
    return [op("mul", [given], [made], **options), collective(0, [made], [total]), op("exp", [total], [end]), loss(end)]


def test_equal_runs_are_identical() -> None:
    """Two runs that do the same in every rank are identical."""
    ranks = [step_of(20), step_of(30, 11)]
    assert compare(ranks, ranks).verdict == "identical"


def test_the_rank_that_departs_by_itself_is_named() -> None:
    """A fault in one rank is named with the rank; ranks that only got it through the sum are listed as receivers."""
    verdict = compare([step_of(20), step_of(30, 11)], [step_of(20, total=41, end=51), step_of(31, 11, 41, 51)])
    assert verdict.verdict == "diverged"
    assert said(verdict) == ("kernel", 1, [1], [0], "aten.mul.default")
    assert "Rank 0 only received it, through c10d.allreduce_.default in step 0." in verdict.notes
    assert {row["rank"] for row in verdict.contract} == {0, 1}


def test_a_fault_in_every_rank_is_one() -> None:
    """What all ranks do otherwise is one divergence, shown for the first of them."""
    ranks = [step_of(21, total=41, end=51, extra="eps=2"), step_of(31, 11, 41, 51, extra="eps=2")]
    verdict = compare([step_of(20, extra="eps=1"), step_of(30, 11, extra="eps=1")], ranks)
    assert said(verdict) == ("arguments", 0, [0, 1], [], "aten.mul.default")


def test_the_collective_itself() -> None:
    """If every rank gave what it gave in the reference, it is the collective that computed something else."""
    verdict = compare([step_of(20), step_of(30, 11)], [step_of(20, total=41, end=51), step_of(30, 11, 41, 51)])
    assert said(verdict) == ("collective", 0, [0, 1], [], "c10d.allreduce_.default")
    assert verdict.first_divergence is not None
    assert "same inputs in all ranks" in verdict.first_divergence["detail"]


def test_a_collective_that_fails_in_one_rank() -> None:
    """A rank that alone got something else from a collective is where it went wrong."""
    verdict = compare([step_of(20), step_of(30, 11)], [step_of(20), step_of(30, 11, 41, 51)])
    assert said(verdict) == ("collective", 1, [1], [], "c10d.allreduce_.default")


def test_collectives_with_other_arguments() -> None:
    """Another reduction on the same inputs is a change of arguments."""

    def ranks(reduction: str, total: int, end: int) -> list[list[Event]]:
        args = f"t0=%0, reduce_op='{reduction}'"
        found = [step_of(20, total=total, end=end), step_of(30, 11, total, end)]
        return [[replace(e, args=args) if e.kind == "collective" else e for e in events] for events in found]

    verdict = compare(ranks("SUM", 40, 50), ranks("MAX", 41, 51))
    assert said(verdict) == ("arguments", 0, [0, 1], [], "c10d.allreduce_.default")


def test_a_fault_is_followed_through_groups() -> None:
    """A fault that passed through two groups is found in the rank where it began; others stay out of it."""

    def ranks(made: int, pair: int, total: int, end: int) -> list[list[Event]]:
        first, last = "1 of 2, 3", "2 of 0, 2"
        passed_on = [collective(0, [22], [pair], first), collective(0, [pair], [total], last)]
        return [
            [op("exp", [10], [20]), collective(0, [20], [total], last), op("neg", [total], [end]), loss(end)],
            [op("exp", [11], [21]), loss(21)],
            [op("exp", [12], [22]), *passed_on, loss(total)],
            [op("exp", [13], [made]), collective(0, [made], [pair], first), loss(pair)],
        ]

    verdict = compare(ranks(23, 30, 40, 50), ranks(24, 31, 41, 51))
    assert said(verdict) == ("kernel", 3, [3], [0, 2], "aten.exp.default")


def test_a_sender_whose_own_contract_is_equal() -> None:
    """A rank that promises nothing else, but sent another value, is where the receiver's difference comes from."""

    def ranks(sent: int, end: int) -> list[list[Event]]:
        where = "0 of 0, 1 from 0 tag 0"
        return [
            [op("exp", [10], [sent]), collective(0, [sent], [], where), op("neg", [10], [30]), loss(30)],
            [collective(0, [], [sent], where), op("neg", [sent], [end]), loss(end)],
        ]

    verdict = compare(ranks(20, 40), ranks(21, 41))
    assert said(verdict) == ("kernel", 0, [0], [1], "aten.exp.default")


def test_collectives_order_what_ranks_do() -> None:
    """Of two faults the one before a collective comes first, also in a higher rank; the other is mentioned."""

    def ranks(early: int, total: int, late: int) -> list[list[Event]]:
        after = op("exp", [total, 12], [late])
        return [
            [op("mul", [10], [20]), collective(0, [20], [total]), after, op("neg", [12], [late + 1]), loss(late + 1)],
            [op("mul", [11], [early]), collective(0, [early], [total]), loss(total)],
        ]

    verdict = compare(ranks(30, 40, 50), ranks(31, 41, 60))
    assert said(verdict)[:2] == ("kernel", 1)
    assert "Rank 0 departs by itself, too: kernel at aten.neg.default in step 0." in verdict.notes


def test_what_differs_in_passing_is_listed_where_it_began() -> None:
    """Values that differ in passing are listed for the rank that made them, not for those that received them."""
    verdict = compare([step_of(20), step_of(30, 11)], [step_of(20, total=41), step_of(31, 11, 41)])
    assert verdict.verdict == "equivalent"
    origins = [(item["rank"], item["op"]) for item in verdict.transient]
    assert (1, "aten.mul.default") in origins
    assert (0, "c10d.allreduce_.default") not in origins


def test_a_received_value_exists_elsewhere() -> None:
    """A rank that gave a stale value is found although that value is known."""
    reference = [step_of(20), [op("neg", [12], [31]), *step_of(30, 11), loss(31)]]
    stale = [op("neg", [12], [31]), op("mul", [11], [30]), collective(0, [31], [41]), op("exp", [41], [51])]
    candidate = [step_of(20, total=41, end=51), [*stale, loss(51), loss(31)]]
    assert said(compare(reference, candidate)) == ("inputs", 1, [1], [0], "c10d.allreduce_.default")


def test_what_a_compiled_graph_received_is_no_kernel() -> None:
    """A graph in which ranks communicate gives other values for the same inputs where another rank departed."""

    def ranks(scaled: int, total: int, end: int) -> list[list[Event]]:
        found = [step_of(20, total=total, end=end), step_of(scaled, 11, total, end)]
        graph = {
            "kind": "region",
            "op": "inductor.forward",
            "args": "graph=1, inputs=[%], collectives=True",
            "key": None,
        }
        return [[replace(e, **graph) if e.kind == "collective" else e for e in events] for events in found]

    verdict = compare(ranks(30, 40, 50), ranks(31, 41, 51))
    assert said(verdict) == ("kernel", 1, [1], [0], "aten.mul.default")
    assert "Rank 0 only received it, through inductor.forward in step 0." in verdict.notes
    assert said(compare(ranks(30, 40, 50), ranks(30, 41, 51)))[0] == "collective"


def test_the_picture_shows_the_rank_that_is_named() -> None:
    """Its operators, around the divergence; the strips are those of all ranks."""
    sides = [Distributed([trace(step_of(20)), trace(step_of(30, 11, end=end))]) for end in (50, 51)]
    found = compare_traces(*sides).first_divergence  # type: ignore[arg-type]
    assert found is not None
    drawn = picture(*sides, found)  # type: ignore[arg-type]
    (here,) = [row for row in drawn["operators"]["rows"] if row["here"]]
    assert (found["rank"], here["state"], here["candidate"]["op"]) == (1, "result", "aten.exp.default")


def test_other_numbers_of_ranks_cannot_be_compared() -> None:
    """The field is named."""
    with pytest.raises(IncomparableError, match="ranks") as error:
        compare([step_of(20)], [step_of(20), step_of(30, 11)])
    assert error.value.slug == "other-ranks"


def test_environments_are_told_apart() -> None:
    """Values and environments that differ make no divergence, with several ranks as with one."""
    sides = [
        Distributed([trace(step_of(20, end=end), key=key), trace(step_of(30, 11, end=end), key=key)])
        for end, key in ((50, "here"), (51, "there"))
    ]
    assert compare_traces(*sides).verdict == "environment"  # type: ignore[arg-type]


def test_contracts_alone() -> None:
    """At level contract the step, the rank and the value are named."""
    verdict = compare([[loss(50)], [loss(60)]], [[loss(50)], [loss(61)]], level="contract")
    assert verdict.first_divergence is not None
    assert (verdict.first_divergence["rank"], verdict.first_divergence["received_by"]) == (1, [])


def test_members_of_a_collective() -> None:
    """The key of an event says which ranks take part; one that says nothing is no guess."""
    assert members(collective(3, [], [], "2 of 0, 10")) == [0, 10]
    assert members(collective(3, [], [], "2 of 4, 5 from 5 tag 1")) == [4, 5]
    assert members(replace(collective(0, [], []), key=None)) is None


def test_collectives_happen_after_what_their_members_did_before() -> None:
    """The order of collectives follows the ranks that took part, whatever the numbers of their events."""
    steps = [
        [collective(0, [1], [2], "0 of 0, 1"), collective(0, [2], [3], "1 of 0, 2")],
        [*(op("exp", [10], [11]) for _ in range(5)), collective(0, [1], [2], "0 of 0, 1")],
        [collective(0, [2], [3], "1 of 0, 2")],
    ]
    together = Together([side_of(trace(events)) for events in steps], 0)
    assert [together.time(0, n) for n in range(3)] == [0, 1, 2]
    assert [together.time(1, n) for n in (0, 5, 6)] == [0, 0, 1]
    assert [together.time(2, n) for n in range(2)] == [0, 2]


def test_objects_are_pointed_at() -> None:
    """A rank that gave other bytes from outside is named beside what they may have become; a fault before it is not put
    down to them, and neither are unknown ends of padded bytes.
    """

    def ranks(told: int, factor: str, source: int = 12, end: int = 51, unwritten: bool = False) -> list[list[Event]]:
        def one(given: int) -> list[Event]:
            made = [op("empty", [], [Write(0, "uint8[90]", 0, 0)], kind="alloc")] if unwritten else []
            bytes_ = read(given, 0 if unwritten else OUTSIDE, spec="uint8[90]", writers=(1,) if unwritten else ())
            sent = collective(0, [bytes_], [Write(given + 5, "uint8[90]", 0, 0)])
            return [
                op("exp", [12], [source]),
                *made,
                sent,
                op("mul", [source], [end], extra=f"other={factor}"),
                loss(end),
            ]

        return [one(70), one(told)]

    before = ranks(80, "3.0", 20, 50)
    verdict = compare(before, ranks(81, "3.5", 20))
    assert said(verdict) == ("arguments", 0, [0, 1], [], "aten.mul.default")
    assert [note for note in verdict.notes if "bytes" in note] == [
        "Rank 1 gave other bytes to c10d.allreduce_.default in step 0, as of a Python object: what becomes of them is "
        "not seen, and may be where this comes from."
    ]
    early = [
        [replace(e, args="t0=%0, other=3.5") if e.op == "aten.exp.default" else e for e in one]
        for one in ranks(81, "3.0", 21)
    ]
    for other, candidate, op_ in (
        (before, ranks(80, "3.5", 20), "aten.mul.default"),
        (ranks(80, "3.0", 20, 50, True), ranks(81, "3.5", 20, 51, True), "aten.mul.default"),
        (before, early, "aten.exp.default"),
    ):
        verdict = compare(other, candidate)
        assert said(verdict) == ("arguments", 0, [0, 1], [], op_)
        assert not any("bytes" in note for note in verdict.notes)
