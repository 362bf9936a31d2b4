"""Causes that lie in the call itself: same inputs, but other arguments or another result. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..trace.model import STRIDED, UNREAD, Event
from .arguments import argument_name, changed_arguments, split_arguments
from .assumed import found_late, is_assumed, may_be_same_inputs
from .cause import Cause
from .pairs import Pairs, inputs_key
from .side import StepView
from .values import written

_GRAPH: Final = "same inputs; another compiled graph"


def of_kernel(pairs: Pairs, event: Event) -> Cause:
    """The same call gave something else (rule 3, contra); or what it read was not what it is recorded to have read."""
    likes = pairs.forward.likes(event)
    place = pairs.like(event)
    same = next((like for like in likes if like is place), likes[0])
    if event.kind == "collective" or has_collectives(event):
        return Cause("collective", event, like=same, detail="same arguments and inputs in this rank; other output")
    if not is_assumed(event) and not is_assumed(same):
        return Cause("kernel", event, like=same, detail=_layouts(event, same))
    detail = "same operator and arguments, and inputs that no recorded operator changed; other output"
    found = of_late_find(pairs, event, same)
    return found or Cause("kernel", event, like=same, detail=detail, one_of=("kernel", "overwritten"))


def _layouts(event: Event, like: Event) -> str:
    """What is the same, of two calls with other results; the same values may lie otherwise in memory."""
    pairs = enumerate(zip(event.reads, like.reads, strict=False))
    names = [argument_name(event.args, n) for n, (mine, other) in pairs if (mine.flags ^ other.flags) & STRIDED]
    if not names:
        return "same operator, arguments and inputs; other output"
    return f"same operator, arguments and values, but another memory layout of {', '.join(names)}; other output"


def has_collectives(event: Event) -> bool:
    """Whether an event is a compiled graph in which ranks communicate."""
    return event.kind == "region" and "collectives" in split_arguments(event.args)


def of_late_find(pairs: Pairs, event: Event, like: Event | None) -> Cause | None:
    """An operand at which nobody looked (level ``op``) was later found changed, in one of the runs."""
    one_of = ("overwritten", "kernel")
    late = found_late(pairs.candidate, event)
    if late is not None:
        return Cause("overwritten", event, like=like, detail=late, one_of=one_of)
    late = None if like is None else found_late(pairs.reference, like)
    if like is None or late is None:
        return None
    return Cause("overwritten", like, "reference", event, late, one_of=one_of)


def of_arguments(pairs: Pairs, event: Event) -> Cause | None:
    """The reference made the call on the same inputs with other arguments, and not as the candidate does."""
    other = same_inputs_other_arguments(pairs, event)
    return None if other is None else arguments(event, other)


def of_arguments_of_unseen(pairs: Pairs, event: Event) -> Cause | None:
    """The same where at least one run did not look at the inputs that differ (level ``op``)."""
    if not (pairs.reference.assumes or pairs.candidate.assumes):
        return None
    for other in pairs.unmatched_in_reference(event.step).by_operator.get(event.op, ()):
        if (
            other.args != event.args
            and _state(other) == _state(event)
            and may_be_same_inputs(event, other)
            and not _are_two_calls(pairs, event, other)
        ):
            return replace(arguments(event, other), one_of=("arguments", "overwritten"))
    return None


def arguments(event: Event, other: Event) -> Cause:
    """The cause of two calls that differ in arguments; what a graph was compiled from is code."""
    if event.kind == "region":
        return Cause("code", event, like=other, detail=_GRAPH, computes=event, before=(other,), after=(event,))
    return Cause("arguments", event, like=other, detail=changed_arguments(other.args, event.args))


def same_inputs_other_arguments(pairs: Pairs, event: Event) -> Event | None:
    """The reference's unmatched call on the same inputs with other arguments that is nearest in kind and place."""
    spare = [
        other
        for other in pairs.unmatched_in_reference(event.step).by_inputs.get(inputs_key(event), ())
        if other.args != event.args
        and _state(other) == _state(event)
        and _overwrites(other) == _overwrites(event)
        and not _are_two_calls(pairs, event, other)
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


def _are_two_calls(pairs: Pairs, event: Event, other: Event) -> bool:
    """Whether two calls are not one with its arguments changed: both runs make both of them, on other inputs; or one
    run makes one of them alone, and such calls once more.
    """
    kept = [_is_as_it_was(pairs.like(event), event), _is_as_it_was(pairs.like_of_reference(other), other)]
    if kept[0] != kept[1]:
        more = _count(pairs.candidate.view(event.step), event) - _count(pairs.reference.view(event.step), other)
        return more < 0 if kept[0] else more > 0
    return kept[0]


def _is_as_it_was(like: Event | None, event: Event) -> bool:
    return like is not None and (like.op, like.args) == (event.op, event.args)


def _count(view: StepView, event: Event) -> int:
    """How often a step calls an operator, in whatever form."""
    return int((view.hashes.base[view.is_op] == view.hashes.base[view.row(event)]).sum())


def _overwrites(event: Event) -> list[str]:
    """What an operator only writes to: of another shape it is another tensor."""
    return [read.spec for read in event.reads if read.flags & UNREAD]


def _state(event: Event) -> int | None:
    return event.draw.before if event.draw is not None else None
