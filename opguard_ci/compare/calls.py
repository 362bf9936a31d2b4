"""Causes that lie in the call itself: same inputs, but other arguments or another result. Pure."""

from __future__ import annotations

from ..trace.model import Event
from .arguments import changed_arguments
from .cause import Cause
from .pairs import Pairs, inputs_key
from .values import written


def of_kernel(pairs: Pairs, event: Event) -> Cause:
    """The same call gave something else (rule 3, contra)."""
    likes = pairs.forward.likes(event)
    place = pairs.like(event)
    same = next((like for like in likes if like is place), likes[0])
    return Cause("kernel", event, like=same, detail="same operator, arguments and inputs; other output")


def of_arguments(pairs: Pairs, event: Event) -> Cause | None:
    """The reference made the call on the same inputs with other arguments, and not as the candidate does."""
    other = same_inputs_other_arguments(pairs, event)
    return None if other is None else arguments(event, other)


def arguments(event: Event, other: Event) -> Cause:
    """The cause of two calls that differ in arguments, or in the shapes that they write."""
    shapes = [", ".join(write.spec for write in written(each)) for each in (other, event)]
    detail = changed_arguments(other.args, event.args) or " -> ".join(shapes)
    return Cause("arguments", event, like=other, detail=detail)


def same_inputs_other_arguments(pairs: Pairs, event: Event) -> Event | None:
    """The reference's unmatched call on the same inputs with other arguments that is nearest in kind and place."""
    spare = [
        other
        for other in pairs.unmatched_in_reference(event.step).by_inputs.get(inputs_key(event), ())
        if other.args != event.args and _state(other) == _state(event)
    ]
    place = pairs.like(event)
    specs = [write.spec for write in written(event)]

    def distance(other: Event) -> tuple[bool, ...]:
        return (
            other.op != event.op,
            other is not place,
            [write.spec for write in written(other)] != specs,
            other.phase != event.phase,
        )

    found = min(spare, key=distance, default=None)
    if found is None or (found.op != event.op and distance(found)[2]):
        return None
    return found


def _state(event: Event) -> int | None:
    return event.draw.before if event.draw is not None else None
