"""Copies into memory: which one run makes alone, and which fill it with something else. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ..trace.model import UNREAD, Event, Read
from .cause import Cause
from .pairs import Pairs
from .shown import other_target
from .side import Side
from .values import other_operands, written


def first_copy(side: Side, read: Read, chosen: Callable[[Event], bool]) -> Event | None:
    """The first chosen one of the copies behind a read."""
    found: list[Event] = []
    queue, visited = [read], set()
    while queue:
        for writer in side.writers(queue.pop()):
            if writer.kind != "copy" or writer.index in visited:
                continue
            visited.add(writer.index)
            queue += [source for source in writer.reads if not source.flags & UNREAD]
            if chosen(writer):
                found.append(writer)
    return min(found, key=lambda e: e.index, default=None)


def is_left_out_copy(pairs: Pairs, event: Event) -> bool:
    """Whether the reference's event is a copy into memory that the candidate does not make, with these or others."""
    unmatched = pairs.unmatched_in_reference(event.step)
    return _is_copy_into(event) and event in unmatched and pairs.like_of_reference(event) is None


def is_inserted_copy(pairs: Pairs, event: Event) -> bool:
    """Whether the candidate's event is a copy into memory that the reference does not make, with these or others."""
    return _is_copy_into(event) and is_inserted(pairs, event)


def filled_otherwise(pairs: Pairs, mine: Read, others: Read) -> tuple[Event, Event] | None:
    """The first copy into a part of the memory that is read whose source is another than the reference's copy had."""
    return next((pair for pair in _fillers_alike(pairs, mine, others) if other_operands(*pair)), None)


def placed_otherwise(pairs: Pairs, mine: Read, others: Read) -> Cause | None:
    """The first copy into a part of the memory that is read that writes elsewhere than the reference's."""
    for made, like in _fillers_alike(pairs, mine, others):
        views = other_target((pairs.reference, pairs.candidate), (like, made))
        if views:
            return Cause("inputs", made, like=like, operand=0, views=views)
    return None


def _fillers_alike(pairs: Pairs, mine: Read, others: Read) -> list[tuple[Event, Event]]:
    theirs = {writer.index for writer in _fillers(pairs.reference, others)}
    found = ((made, pairs.like(made)) for made in _fillers(pairs.candidate, mine))
    return [(made, like) for made, like in found if like is not None and like.index in theirs]


def _fillers(side: Side, read: Read) -> list[Event]:
    """The copies into parts of the memory that is read, in order; clones are seen through."""
    writers = list(side.writers(read))
    while len(writers) == 1 and writers[0].kind == "copy" and not is_in_place(writers[0]):  # so it has one source
        writers = list(side.writers(writers[0].reads[0]))
    return sorted(filter(_is_copy_into, writers), key=lambda e: e.index) if len(writers) > 1 else []


def is_inserted(pairs: Pairs, made: Event) -> bool:
    """Whether the candidate's event is one that the reference does not have, with these operands or others."""
    return made in pairs.unmatched(made.step) and pairs.like(made) is None


def _is_copy_into(event: Event) -> bool:
    return event.kind == "copy" and is_in_place(event)


def is_in_place(event: Event) -> bool:
    """Whether an event writes openly into one of its arguments."""
    return any(write.slot < 0 for write in written(event))
