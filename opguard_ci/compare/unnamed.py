"""Contract values that only one run could name, though the other made them, too (verdict.md, rule 6). Pure.

What a script trains is seen by what it calls: buffers by the call of their module, losses by ``backward()``. A run that
gets the same by other means, as by ``F.batch_norm`` or ``torch.autograd.grad``, has the values and not the names.
"""

from __future__ import annotations

from typing import Final

from ..trace.model import UNREAD, Event
from .contract import Difference
from .origin import Origins
from .pairs import Pairs, Unmatched
from .values import full_key

SEEN: Final = frozenset(("loss", "parameter", "buffer", "optimizer"))
"""Sections of what is seen of a run; the others are promises of its own."""


def is_unnamed(pairs: Pairs, difference: Difference) -> bool:
    """Whether the run that does not name a value made it by the same call, and has written nothing over it since."""
    mine, value = pairs.backward, difference.reference
    if value is None:
        mine, value = pairs.forward, difference.candidate
    elif difference.candidate is not None:
        return False
    assert value is not None
    read = value.reads[0]
    makers = list(mine.mine.writers(read))
    if difference.section not in SEEN or not any(w.value == read.value for maker in makers for w in maker.writes):
        return False
    return all(_has_like(pairs, mine, maker, value.step) for maker in makers)


def _has_like(pairs: Pairs, mine: Origins, maker: Event, step: int) -> bool:
    """Whether the other run has the same call with the same result, and keeps it to the end of a step."""
    place = (pairs.like_of_reference if mine is pairs.backward else pairs.like)(maker)
    view = mine.mine.view(maker.step)
    found = mine.other.view(maker.step).alike(view.hashes.full[view.row(maker)])
    likes = [like for like in found if (full_key(like), like.writes) == (full_key(maker), maker.writes)]
    if place is not None and any(like is place for like in likes):
        likes = [place]
    unmatched = pairs.unmatched if mine is pairs.backward else pairs.unmatched_in_reference
    steps = [between for between in mine.other.steps if maker.step <= between <= step]
    return bool(likes) and not any(_is_replaced(like, unmatched(between)) for like in likes for between in steps)


def _is_replaced(maker: Event, unmatched: Unmatched) -> bool:
    """Whether something that the one run did alone may have written over what an event made."""
    for event in unmatched.events:
        for write in event.writes if event.index > maker.index else ():
            if write.slot < 0:
                read = event.reads[~write.slot]
                if read.flags & UNREAD or maker.index in read.writers:
                    return True
    return False
