"""Two distributed runs in, one verdict out. Pure.

Each rank is compared with itself in the other run. A rank whose values part at a collective, with the same arguments
and inputs of its own, has received the fault: it is followed to the ranks that gave the collective other inputs, and
from there back, until a rank is found that departs by itself. If all gave the same inputs, it is the collective.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..trace.arrays import StepArrays
from ..trace.model import Event, StepInfo
from ..trace.ranks import of_rank
from . import objects
from .cause import Cause
from .collectives import Together, members
from .comparison import Comparison, contract_json, only_contract, total_structure
from .contract import Difference
from .describe import describe_cause
from .manifests import identity, other_environments
from .values import read_values
from .verdict import Verdict


class DistributedTrace(Protocol):
    """A trace of several ranks."""

    manifest: dict[str, Any]

    def index(self, rank: int = 0) -> list[StepInfo]:
        """Where the steps of a rank stand that can be read, in order."""

    def arrays(self, number: int, rank: int = 0) -> StepArrays:
        """The events of a step of a rank."""

    def numbers(self, value: int, spec: str, rank: int = 0) -> bytes | None:
        """The numbers of a value that a rank kept."""


class OneRank:
    """One rank of a distributed run, as a trace of its own."""

    def __init__(self, trace: DistributedTrace, rank: int) -> None:
        self.manifest = of_rank(trace.manifest, rank)
        self._trace, self._rank = trace, rank

    def index(self) -> list[StepInfo]:
        """Where the steps stand that can be read."""
        return self._trace.index(self._rank)

    def arrays(self, number: int) -> StepArrays:
        """The events of a step."""
        return self._trace.arrays(number, self._rank)

    def numbers(self, value: int, spec: str) -> bytes | None:
        """The numbers of a value that the rank kept."""
        return self._trace.numbers(value, spec, self._rank)


def compare_ranks(reference: DistributedTrace, candidate: DistributedTrace, across_environments: bool) -> Verdict:
    """Compare two distributed runs with as many ranks."""
    ranks = range(candidate.manifest["ranks"])
    parts = [Comparison(OneRank(reference, r), OneRank(candidate, r), across_environments) for r in ranks]
    return _Ranks(reference.manifest, candidate.manifest, parts).verdict(across_environments)


@dataclass(frozen=True, slots=True)
class _Root:
    """Where a rank departs by itself; ``cause`` None: no operator says where."""

    rank: int
    cause: Cause | None
    step: int
    found: tuple[Difference, ...]


class _Ranks:
    def __init__(self, left: dict[str, Any], right: dict[str, Any], parts: Sequence[Comparison]) -> None:
        self.left, self.right, self.parts = left, right, parts
        self._together: dict[tuple[str, int], Together] = {}
        self._visited: set[tuple[int, int]] = set()
        self._received: dict[int, Event] = {}
        self._roots: list[_Root] = []
        self._excused: list[str] = []

    def verdict(self, across_environments: bool) -> Verdict:
        """The verdict about the two runs."""
        differing = [part.first_difference() for part in self.parts]
        hard = {rank: (step, found) for rank, (step, found) in enumerate(differing) if step is not None}
        base: dict[str, Any] = {
            "reference": identity(self.left),
            "candidate": identity(self.right),
            "coverage": self.right.get("coverage", {}),
            "findings": self._each([part.findings() for part in self.parts]),
            "structure": total_structure(part.structure() for part in self.parts),
            "tolerance": self._tolerance(),
            "declared_unstable": self._declared_unstable(),
        }
        for rank, (step, found) in hard.items():
            self._follow(_Root(rank, self.parts[rank].cause(step, found), step, tuple(found)))
        if hard and not self._roots and self._excused:
            hard = {}
        if not hard:
            transient = self._transient(None)
            name = "equivalent" if any(part.differing for part in self.parts) else "identical"
            doubt = self.parts[0].doubt()
            notes = [*self._notes(), *dict.fromkeys(self._excused), *([doubt] if doubt else [])]
            return Verdict("untestable" if doubt else name, transient=transient, notes=notes, **base)
        base["contract"] = [
            {**row, "rank": rank} for rank, (step, found) in hard.items() for row in contract_json(step, found)
        ]
        one_key = self.left["environment"].get("key") == self.right["environment"].get("key")
        if not one_key and not across_environments:
            note = "Values and environments differ: run both sides on one machine to tell code from environment."
            other = other_environments(self.left["environment"], self.right["environment"])
            return Verdict("environment", notes=[*self._notes(), note, *other], **base)
        first, notes = self._first()
        transient = self._transient(min(step for step, _ in hard.values()))
        return Verdict("diverged", first_divergence=first, transient=transient, notes=[*self._notes(), *notes], **base)

    # Following a fault back

    def _follow(self, root: _Root) -> None:
        """Find where the departure of a rank comes from."""
        cause, rank = root.cause, root.rank
        if cause is None or cause.cause != "collective":
            self._roots.append(root)
            return
        event = cause.event
        if (rank, event.index) in self._visited:
            return
        self._visited.add((rank, event.index))
        senders = self._senders(rank, event)
        if senders == {}:
            self._roots.append(root)
            return
        self._received.setdefault(rank, event)
        for sender, given in (senders or {}).items():
            like = self._in_reference(sender, given)
            sink = Difference("collective", given.op, like, given)
            pattern = self.parts[sender].declared(sink)
            if pattern is not None:
                self._excused.append(
                    f"Rank {rank} differs only for what rank {sender} gave to {given.op}: it comes from {pattern!r}, "
                    "which the recipes declare unstable."
                )
                continue
            behind = self.parts[sender].judge.explain([sink], None) or _exchanged(given, like)
            self._follow(_Root(sender, behind, behind.event.step, (sink,)))

    def _senders(self, rank: int, event: Event) -> dict[int, Event] | None:
        """The other ranks that gave a collective other inputs than in the reference; None if that cannot be told."""
        taking_part = members(event)
        events = self._of("candidate", event.step).at(event.key)
        if taking_part is None or any(other not in events for other in taking_part):
            return None
        others = {other: events[other] for other in taking_part if other != rank}
        return {other: given for other, given in others.items() if self._gave_others(other, given)}

    def _gave_others(self, rank: int, event: Event) -> bool:
        like = self._in_reference(rank, event)
        if like is not None:
            return (like.args, read_values(like)) != (event.args, read_values(event))
        forward = self.parts[rank].judge.forward
        return any(forward.status(event, read)[0] != "clean" for read in event.reads)

    def _in_reference(self, rank: int, event: Event) -> Event | None:
        """The reference's event of the same collective, or of the same place."""
        found = self._of("reference", event.step).at(event.key).get(rank)
        return found if found is not None else self.parts[rank].judge.pairs.like(event)

    def _of(self, side: str, step: int) -> Together:
        if (side, step) not in self._together:
            sides = [getattr(part.judge, side) for part in self.parts]
            self._together[side, step] = Together(sides, step)
        return self._together[side, step]

    # The first

    def _first(self) -> tuple[dict[str, Any], list[str]]:
        """The divergence that comes first, and what has to be said about the ranks."""
        if not self._roots:  # round and round: each received it from another
            rank, event = min(self._received.items())
            self._roots.append(_Root(rank, Cause("collective", event), event.step, ()))
        root = min(self._roots, key=self._order)
        found = self._described(root)
        same = {other.rank for other in self._roots if _place(other) == _place(root)}
        own = {other.rank for other in self._roots}
        received = {rank: event for rank, event in sorted(self._received.items()) if rank not in own}
        found |= {"rank": root.rank, "ranks": sorted(same), "received_by": list(received)}
        notes = [
            f"Rank {rank} only received it, through {event.op} in step {event.step}."
            for rank, event in received.items()
        ]
        for other in sorted(self._roots, key=self._order):
            if other.rank not in same and other.cause is not None:
                event = other.cause.event
                notes.append(
                    f"Rank {other.rank} departs by itself, too: {other.cause.cause} at {event.op} in step {event.step}."
                )
        return found, list(dict.fromkeys([*notes, *self._told_before(root)]))

    def _told_before(self, root: _Root) -> list[str]:
        """The ranks that were the first to tell the others something else as Python objects, if none received a
        departure, and if that was before it.
        """
        if root.cause is None or root.cause.cause == "collective" or self._received:
            return []
        step, last = root.cause.event.step, self._order(root)[2]
        told = [(rank, objects.told(part.judge, step)) for rank, part in enumerate(self.parts)]
        done = [(self._of("candidate", step).time(rank, e.index + 1), rank, e) for rank, e in told if e is not None]
        first = min((time for time, *_ in done), default=last)
        return [objects.sentence(rank, event) for time, rank, event in done if time == first <= last]

    def _order(self, root: _Root) -> tuple[bool, int, int, int]:
        """By collectives within a step: what no operator explains comes last, whatever its step."""
        if root.cause is None:
            return True, root.step, 0, root.rank
        event = root.cause.event
        return False, event.step, self._of(root.cause.side, event.step).time(root.rank, event.index), root.rank

    def _described(self, root: _Root) -> dict[str, Any]:
        judge = self.parts[root.rank].judge
        if root.cause is None:
            return only_contract(root.step, list(root.found), judge)
        if root.cause.cause == "collective":
            found = describe_cause(root.cause, judge)
            if members(root.cause.event) is not None and self._senders(root.rank, root.cause.event) == {}:
                found["detail"] = "same arguments, and same inputs in all ranks; other output"
            return found
        return describe_cause(judge.earlier_alike(root.cause), judge)

    # What all ranks together have

    def _transient(self, before: int | None) -> list[dict[str, Any]]:
        """What differed in passing, but for what a rank only received. ``before``: the first step that failed."""
        found = []
        for rank, part in enumerate(self.parts):
            if part.full:
                steps = [step for step in part.differing if before is None or step < before]
                found.append(part.transient(steps, functools.partial(self._is_own, rank)))
            else:
                found.append([])
        return sorted(self._each(found), key=lambda item: item["step"])

    def _is_own(self, rank: int, cause: Cause) -> bool:
        return cause.cause != "collective" or self._senders(rank, cause.event) == {}

    def _each(self, found: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return [{**item, "rank": rank} for rank, items in enumerate(found) for item in items]

    def _notes(self) -> list[str]:
        """The notes of all ranks, each once; one that only some have says of which."""
        found: dict[str, None] = {}
        for rank, part in enumerate(self.parts):
            for note in part.notes:
                everywhere = all(note in other.notes for other in self.parts)
                found[note if everywhere else f"rank {rank}: {note}"] = None
        return list(found)

    def _tolerance(self) -> dict[str, Any]:
        parts = [part.allowances.tolerance_json() for part in self.parts]
        if not any(parts):
            return {}
        within = self._each([part.get("within", []) for part in parts])
        largest = self._each([[part["largest"]] if part.get("largest") else [] for part in parts])
        return {
            **parts[0],
            "within": within,
            "num_within": sum(part.get("num_within", 0) for part in parts),
            "largest": max(largest, key=lambda one: one["max_ulp"] or 0, default=None),
        }

    def _declared_unstable(self) -> dict[str, Any]:
        parts = [part.allowances.unstable_json() for part in self.parts]
        if not any(parts):
            return {}
        return {
            **parts[0],
            "not_judged": self._each([part.get("not_judged", []) for part in parts]),
            "num_not_judged": sum(part.get("num_not_judged", 0) for part in parts),
        }


def _exchanged(event: Event, like: Event | None) -> Cause:
    """A collective was given values that exist elsewhere, too, and no operator says why."""
    values = read_values(like) if like is not None else ()
    operand = next((n for n, value in enumerate(read_values(event)) if n >= len(values) or value != values[n]), 0)
    return Cause("inputs", event, like=like, operand=operand)


def _place(root: _Root) -> tuple[object, ...]:
    """What makes departures of several ranks one."""
    cause = root.cause
    if cause is None:
        return (None, root.step)
    event = cause.event
    return (cause.cause, cause.side, event.step, event.phase, event.op, event.module)
