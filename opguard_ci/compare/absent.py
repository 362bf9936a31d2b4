"""Departures that show only on the reference's side (verdict.md, rules 9 and 10). Pure."""

from __future__ import annotations

from ..trace.model import Event
from .copies import is_left_out_copy
from .origin import Origin
from .pairs import Pairs, inputs_key
from .values import Key, read_values


def joined(pairs: Pairs, ours: list[Origin], theirs: list[Origin]) -> list[Origin]:
    """Rule 9: with departures of the reference whose counterparts in the candidate heal before they are new there."""
    found = {origin.index: origin for origin in ours}
    for origin in theirs:
        event = origin.event
        if not event.computes:
            continue
        for mine in pairs.backward.likes(event):
            if pairs.forward.contra(mine):
                found.setdefault(mine.index, Origin(mine, None, True))
        others = [
            mine
            for mine in pairs.unmatched(event.step).by_inputs.get(inputs_key(event), ())
            if mine.op == event.op and mine.args != event.args and _inputs(mine) == _inputs(event) and not mine.draw
        ]
        if not any(mine.index in found for mine in others):  # else one of them is what became of it
            found.update((mine.index, Origin(mine, None, False)) for mine in others)
    return [found[index] for index in sorted(found)]


def _inputs(event: Event) -> Key:
    return (read_values(event), tuple(read.spec for read in event.reads))


def begins_earlier(ours: list[Origin], theirs: list[Origin]) -> bool:
    """Rule 10: whether the reference did something in an earlier step than any departure of the candidate."""
    return bool(theirs) and bool(ours) and theirs[0].event.step < ours[0].event.step


def skipped_copy(pairs: Pairs, sinks: list[Event]) -> Event | None:
    """The first copy into memory behind the reference's sinks that the candidate does not make."""
    found: dict[int, Event] = {}
    queue = [read for sink in sinks for read in sink.reads]
    visited: set[int] = set()
    while queue:
        read = queue.pop()
        for writer in pairs.reference.writers(read):
            if writer.index in visited:
                continue
            visited.add(writer.index)
            if is_left_out_copy(pairs, writer):
                found[writer.index] = writer
            if writer.kind == "copy" or pairs.backward.new(writer):
                queue += writer.reads
    return found[min(found)] if found else None
