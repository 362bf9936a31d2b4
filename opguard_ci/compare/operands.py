"""Causes that lie in an operand: the same call on another value, followed back to where the two runs part. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ..trace.model import STATE, Event, Read
from .align import place
from .calls import arguments, of_kernel
from .cause import Cause
from .copies import (
    filled_otherwise,
    first_copy,
    is_in_place,
    is_inserted,
    is_inserted_copy,
    is_left_out_copy,
    placed_otherwise,
)
from .foreign import comes_in_backward
from .origin import Origin
from .pairs import Pairs
from .shown import other_view, views_of
from .side import Side
from .values import other_operands, written


def of_operand(pairs: Pairs, event: Event, theirs: list[Origin]) -> Cause | None:
    """The same call on other operands: by where the operand that differs came from."""
    other = _same_call(pairs, event, theirs)
    if other is None:
        return None
    return min(_departures(pairs, event, other), key=_place_in_reference, default=None)


def _place_in_reference(cause: Cause) -> int:
    """Where in the reference's order of events the runs part by this cause; in the candidate's if only that has it."""
    event = cause.like if cause.side == "candidate" and cause.like is not None else cause.event
    return event.index


def _same_call(pairs: Pairs, event: Event, theirs: list[Origin]) -> Event | None:
    """The reference's call at the place of a candidate's; failing that, one that has no counterpart."""
    wanted, like = place(event), pairs.like(event)
    if like is not None and (like.op != event.op or place(like) != wanted):
        like = None
    if like is not None and (_is_clean(pairs, like) or not _has_twin(pairs, event)):
        return like
    spare = [origin.event for origin in theirs if origin.event.step == event.step and origin.event.computes]
    spare += pairs.unmatched_in_reference(event.step).by_operator.get(event.op, [])
    alike = [e for e in spare if e.op == event.op and place(e) == wanted and pairs.like_of_reference(e) is None]
    found = min(alike, key=lambda e: not _is_clean(pairs, e), default=None)
    return like if like is not None and (found is None or not _is_clean(pairs, found)) else found


def is_gone(pairs: Pairs, other: Event) -> bool:
    """Whether the candidate makes no such call as one of the reference, also not on something else."""
    return other.kind == "op" and _is_left_out(pairs, other) and not _spare(pairs, other)


def _has_twin(pairs: Pairs, event: Event) -> bool:
    """Whether the candidate makes one more call like this one that has no counterpart: their order is another."""
    return any(e is not event for e in _spare(pairs, event))


def _spare(pairs: Pairs, call: Event) -> list[Event]:
    """The candidate's calls like one of either run that have no counterpart."""
    found = pairs.unmatched(call.step).by_operator.get(call.op, ())
    return [e for e in found if place(e) == place(call) and pairs.like(e) is None]


def _is_clean(pairs: Pairs, other: Event) -> bool:
    return all(pairs.backward.status(other, read)[0] != "dirty" for read in other.reads)


def of_contract(pairs: Pairs, value: Event, other: Event) -> Cause | None:
    """Where two contract values that both runs know came to be exchanged; copies bring them about."""
    found = min(_departures(pairs, value, other), key=_place_in_reference, default=None)
    if found is None or found.event is not value:
        return found
    mine, others = (list(side.writers(e.reads[0])) for side, e in ((pairs.candidate, value), (pairs.reference, other)))
    if not mine or not others or mine[-1].op != others[-1].op:
        return None
    numbers = other_operands(mine[-1], others[-1])
    return Cause(found.cause, mine[-1], like=others[-1], operand=numbers[0]) if numbers else None


def _departures(pairs: Pairs, event: Event, other: Event) -> Iterator[Cause]:
    """Where two like calls came to have other operands: back in both runs at once, while an operand's producers are
    one call that the candidate made otherwise.
    """
    queue = [(event, other, number) for number in reversed(other_operands(event, other))]
    visited = {event.index}
    while queue:
        event, other, number = queue.pop()
        mine, others = event.reads[number], other.reads[number]
        copy = first_copy(pairs.reference, others, lambda e: is_left_out_copy(pairs, e))
        if copy is not None:
            yield missing(pairs, copy)
            continue
        copy = first_copy(pairs.candidate, mine, lambda e: is_inserted_copy(pairs, e))
        if copy is not None:
            yield Cause("code", copy, like=other, computes=copy, after=(copy,))
            continue
        filled = filled_otherwise(pairs, mine, others)
        if filled is not None and filled[0].index not in visited:
            visited.add(filled[0].index)
            queue += [(*filled, number) for number in reversed(other_operands(*filled))]
            continue
        placed = placed_otherwise(pairs, mine, others)
        if placed is not None:
            yield placed
            continue
        made, theirs = _producers(pairs, (event, number), (other, number))
        order = _other_order(pairs, (event, made), (other, theirs))
        if order:
            yield Cause("inputs", event, like=other, operand=number, detail=order)
            continue
        aside = _written_aside(pairs, event, other, number)
        if aside is not None:
            yield aside
            continue
        in_place = _in_place(pairs, made, theirs, (mine.value, others.value))
        if in_place is not None:
            yield in_place
            continue
        if made is not None and theirs is not None and made.op == theirs.op and made in pairs.unmatched(made.step):
            if made.index in visited:
                continue
            visited.add(made.index)
            found = _at_call(pairs, made, theirs)
            if found is not None:
                yield found
                continue
            following = other_operands(made, theirs)
            if following and place(made) == place(theirs):
                queue += [(made, theirs, number) for number in reversed(following)]
                continue
        if theirs is not None and _is_left_out(pairs, theirs) and _goes_on(pairs.candidate, mine, theirs):
            yield missing(pairs, missing_before(pairs, other) or theirs)  # its input went on in its stead
        elif made is not None and is_inserted(pairs, made) and _goes_on(pairs.reference, others, made):
            yield Cause("code", made, computes=made, after=(made,))
        elif pairs.backward.status(other, others)[0] != "dirty":
            views = ""
            if event.step == other.step:
                views = other_view((pairs.reference, pairs.candidate), event.step, (others, mine))
            if mine.value == others.value:
                views = f"{others.spec} -> {mine.spec}"
            cause = "inputs" if views else _cause(pairs, event, mine, others)
            foreign = _may_be_foreign(pairs, event, mine, others)
            if cause == "data":
                sides = ((pairs.candidate, event, mine), (pairs.reference, other, others))
                foreign = foreign or any(comes_in_backward(*side) for side in sides)
            one_of = (cause, "overwritten") if foreign else ()
            yield Cause(cause, event, like=other, operand=number, views=views, one_of=one_of)


def _in_place(pairs: Pairs, made: Event | None, theirs: Event | None, values: tuple[int, int]) -> Cause | None:
    """One run wrote in place over what the other still reads."""
    if made is not None and _writes_over(made, values[1]):
        like = pairs.like(made)
        if like is None or not _writes_over(like, values[1]):
            return Cause("code", made, like=like, computes=made, before=(like,) if like else (), after=(made,))
    if theirs is not None and _writes_over(theirs, values[0]):
        mine = pairs.like_of_reference(theirs)
        if mine is not None and not _writes_over(mine, values[0]):
            return Cause("code", mine, like=theirs, computes=mine, before=(theirs,), after=(mine,))
    return None


def _other_order(pairs: Pairs, mine: tuple[Event, Event | None], others: tuple[Event, Event | None]) -> str:
    """That one run reads before the operator that made the operand in the other, if it runs that too but later.

    ``mine``, ``others``: the reader and what made its operand.
    """
    (event, made), (other, theirs) = mine, others
    if theirs is not None and not (made is not None and place(made) == place(theirs)):  # else in turn, as in a loop
        like = pairs.like_of_reference(theirs)
        calls = [like] if like is not None else _spare(pairs, theirs)
        if calls and _is_as_often(pairs, theirs) and all(call.index > event.index for call in calls):
            return f"read before {theirs.op}, not after it"
    if made is not None and is_in_place(made):
        like = pairs.like(made)
        if like is not None and like.index > other.index and _is_as_often(pairs, like):
            return f"read after {made.op}, not before it"
    return ""


def _is_as_often(pairs: Pairs, theirs: Event) -> bool:
    """Whether both runs make a call of the reference, on whatever values, as often in its step."""
    views = (pairs.reference.view(theirs.step), pairs.candidate.view(theirs.step))
    wanted = views[0].hashes.place[views[0].row(theirs)]
    counts = [int(((view.hashes.place == wanted) & view.is_op).sum()) for view in views]
    return counts[0] == counts[1]


def _written_aside(pairs: Pairs, event: Event, other: Event, number: int) -> Cause | None:
    """The same memory is read, of which one run wrote a part in place, the other by the same call something else."""
    mine = {writer.index: writer for writer in pairs.candidate.writers(event.reads[number])}
    theirs = {writer.index: writer for writer in pairs.reference.writers(other.reads[number])}
    likes = {index: pairs.like(writer) for index, writer in mine.items()}
    shared = {index: like for index, like in likes.items() if like is not None and like.index in theirs}
    more = [mine[index] for index in mine if index not in shared]
    fewer = [theirs[index] for index in theirs if index not in {like.index for like in shared.values()}]
    if not shared or len(more) + len(fewer) != 1:
        return None
    made = more[0] if more else pairs.like_of_reference(fewer[0])
    like = fewer[0] if fewer else likes[more[0].index]
    if made is None and _is_left_out(pairs, fewer[0]):
        return missing(pairs, fewer[0])
    if like is None and more and is_inserted(pairs, more[0]):
        return Cause("code", more[0], computes=more[0], after=(more[0],))
    if made is None or like is None or made.op != like.op or not made.computes or made.index > event.index:
        return None
    verb = "writes" if more else "does not write"
    detail = f"{verb} into the memory that {event.op} reads, otherwise than in the reference"
    return Cause("code", made, like=like, detail=detail, computes=made, before=(like,), after=(made,))


def _writes_over(event: Event, value: int) -> bool:
    """Whether an operator writes in place into memory that had a value before."""
    return any(write.slot < 0 and event.reads[~write.slot].value == value for write in written(event))


def _at_call(pairs: Pairs, made: Event, theirs: Event) -> Cause | None:
    """The cause of two calls of one operator, if it is not in their operands."""
    if pairs.forward.contra(made):
        return of_kernel(pairs, made)
    if made.args != theirs.args and len(made.reads) == len(theirs.reads) and not other_operands(made, theirs):
        return arguments(made, theirs)
    return None


def _is_left_out(pairs: Pairs, theirs: Event) -> bool:
    return theirs in pairs.unmatched_in_reference(theirs.step) and pairs.like_of_reference(theirs) is None


def _goes_on(side: Side, operand: Read, call: Event) -> bool:
    """Whether an operand of one run is, or is a view of, what went into an operator of the other in that step."""
    behind = views_of(side.view(call.step), operand.value)
    return any(read.value in behind for read in call.reads)


def _producers(pairs: Pairs, mine: tuple[Event, int], others: tuple[Event, int]) -> tuple[Event | None, Event | None]:
    """The one operator of the reader's step that made an operand, copies aside, on both sides."""
    found: list[Event | None] = []
    for origins, (reader, number) in ((pairs.forward, mine), (pairs.backward, others)):
        made = origins.producers(reader.reads[number])
        found.append(made[0] if len(made) == 1 and made[0].step == reader.step else None)
    return found[0], found[1]


def _may_be_foreign(pairs: Pairs, event: Event, mine: Read, others: Read) -> bool:
    """Whether a value that one run alone has, though no operator made it, may have got there by a foreign write that
    nobody looked for (level ``op``).
    """
    if not (pairs.reference.assumes or pairs.candidate.assumes) or not mine.writers or not others.writers:
        return False
    views = (pairs.reference.view(event.step), pairs.candidate.view(event.step))
    return not (views[0].knows(mine.value) and views[1].knows(others.value))


def _cause(pairs: Pairs, event: Event, mine: Read, others: Read) -> str:
    if event.phase == "data" and not (mine.flags | others.flags) & STATE:
        return "data"  # other samples, or in another order, wherever they were made
    made = pairs.forward.producers(mine)
    theirs = pairs.backward.producers(others)
    if not made or not theirs:
        return "state" if (mine.flags | others.flags) & STATE else "data"
    if all(e.phase == "setup" for e in (*made, *theirs)):
        return "state"
    if all(e.phase == "data" for e in (*made, *theirs)):
        return "data"
    return "inputs"


# What the candidate left out


def missing(pairs: Pairs, event: Event) -> Cause:
    """Something that the reference does and the candidate does not."""
    detail = "the reference does this, the candidate does not"
    return Cause("missing", event, "reference", pairs.like_of_reference(event), detail)


def missing_before(pairs: Pairs, like: Event) -> Event | None:
    """The reference's own operator behind an operand of a call, if the candidate has none like it."""
    for origin in pairs.backward.behind([like]):
        if origin.index < like.index and pairs.like_of_reference(origin.event) is None:
            return origin.event
    return None
