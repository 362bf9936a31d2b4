"""Causes that no operator of a run computed: memory that somebody unseen wrote or nobody wrote, values from outside,
and arguments changed in hiding. They may lie in either run (verdict.md, rule 11). Pure.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..trace.model import OUTSIDE, PHASES, STATE, Event, Read
from .assumed import may_be_same_inputs
from .calls import same_inputs_other_arguments
from .cause import Cause, hidden_argument, hidden_write
from .origin import Leaf, Origin, Origins
from .pairs import Pairs
from .side import Side
from .values import base_name, num_elements

_BACKWARD: Final = PHASES.index("backward")

_SAID: Final = {
    "overwritten": "changed since it was last written, by no recorded operator,",
    "uninitialised": "holds memory that nobody wrote",
}


def of_leaf(pairs: Pairs, event: Event, leaf: Leaf, side: str = "candidate") -> Cause:
    """A value that comes from no operator; memory from outside is the state's or data. Where only the contract shows
    it, the operator that reads it next is named.
    """
    kind = {"outside": "state" if leaf.read.flags & STATE else "data", "torn": "overwritten"}.get(leaf.kind, leaf.kind)
    detail = ""
    if leaf.kind == "torn":
        detail = f"{leaf.read.spec} was changed in one of the runs, by no recorded operator: both wrote it alike"
    if event.kind == "contract":
        reader = _next_reader(pairs.forward if side == "candidate" else pairs.backward, event, leaf)
        if reader is not None:
            said = _SAID.get(kind, "is another value")
            detail = (
                f"{event.args} {leaf.read.spec} {said} at the end of step {event.step}; this is the first to read it"
            )
            event = reader
    like = pairs.like(event) if side == "candidate" else pairs.like_of_reference(event)
    operand = next((n for n, read in enumerate(event.reads) if read.value == leaf.read.value), None)
    # Where the other run did not look, the same may have been so there.
    unseen = kind == "overwritten" and like is not None and may_be_same_inputs(event, like)
    one_of = ("overwritten", "kernel") if unseen else ()
    mine = pairs.candidate if side == "candidate" else pairs.reference
    if kind == "data" and comes_in_backward(mine, event, leaf.read):
        one_of = ("data", "overwritten")
    return Cause(kind, event, side, like, detail, leaf=leaf, operand=operand, one_of=one_of)


def comes_in_backward(side: Side, event: Event, read: Read) -> bool:
    """Whether an operand in backward is foreign memory that no forward operator of the step read as it is: refilled
    since, or brought in by backward code of the user's own.
    """
    if event.phase != "backward" or not read.flags & OUTSIDE:
        return False
    view = side.view(event.step)
    before = (view.arrays.phase != _BACKWARD)[view.read_rows]
    return not bool((view.arrays.read_value[before] == np.uint64(read.value)).any())


def _next_reader(origins: Origins, value: Event, leaf: Leaf) -> Event | None:
    """The first operator of a later step that reads the memory of a contract value, also through a view."""
    for step in origins.mine.steps:
        for found, reader in origins.leaf_readers(step) if step > value.step else ():
            if (found.kind, found.read.writers) == (leaf.kind, leaf.read.writers) and _size(found) == _size(leaf):
                return reader
    return None


def _size(leaf: Leaf) -> int:
    return num_elements(leaf.read.spec)


def of_hidden_write(event: Event, like: Event | None, side: str = "candidate") -> Cause:
    """An argument that its schema calls read-only was changed."""
    detail = f"{hidden_argument(event)} is read-only by its schema but was changed"
    return Cause("hidden-mutation", event, side, like, detail)


def in_reference(pairs: Pairs, theirs: list[Origin]) -> Cause | None:
    """The reference's first departure, if it is a foreign or hidden write or memory that nobody wrote."""
    if not theirs:
        return None
    event, leaf = theirs[0].event, theirs[0].leaf
    if hidden_write(event) and base_name(event.op) not in pairs.candidate.view(event.step).hidden:
        return of_hidden_write(event, pairs.like_of_reference(event), "reference")
    if leaf is not None and leaf.kind in ("overwritten", "uninitialised"):
        return of_leaf(pairs, event, leaf, "reference")
    return None


def behind_departure(pairs: Pairs, event: Event, theirs: list[Origin]) -> bool:
    """Whether the reference's first departure is the counterpart of a candidate's or feeds it, or is what the candidate
    feeds with something that the reference does not do.
    """
    first, like = theirs[0], pairs.like(event)
    if like is None and hidden_write(first.event):  # with other arguments it stands at no place of the reference's
        like = same_inputs_other_arguments(pairs, event)
    if like is not None:
        same = first.index == like.index
        return same or _feeds(pairs.backward, first.event, like) or _reads(pairs.backward, like, first.leaf)
    mine = pairs.like_of_reference(first.event)
    return mine is not None and _feeds(pairs.forward, event, mine)


def _reads(origins: Origins, event: Event, leaf: Leaf | None) -> bool:
    """Whether an event reads a leaf too, of which another is the first reader."""
    found = (origins.status(event, read)[2] for read in event.reads)
    return leaf is not None and any(f and (f.kind, f.read.value) == (leaf.kind, leaf.read.value) for f in found)


def _feeds(origins: Origins, source: Event, sink: Event) -> bool:
    """Whether ``sink`` was made from what ``source`` wrote."""
    queue, visited = [sink], {sink.index}
    while queue:
        for read in queue.pop().reads:
            for producer in origins.producers(read):
                if producer.index == source.index:
                    return True
                if producer.index not in visited and producer.index > source.index:
                    visited.add(producer.index)
                    queue.append(producer)
    return False


def is_old(pairs: Pairs, event: Event, leaf: Leaf) -> bool:
    """Whether the reference has the value from outside that an operator read in a step before: not it is new then, but
    the operator.
    """
    value, steps = leaf.read.value, (step for step in pairs.reference.steps if step < event.step)
    return event.computes and any(pairs.reference.view(step).knows(value) for step in steps)
