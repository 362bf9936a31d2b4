"""Why a run departs from the other: the cause of an origin (verdict.md, rules 8-13). Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..trace.model import PHASES, Event
from .absent import begins_earlier, joined, skipped_copy
from .calls import arguments, of_arguments, of_arguments_of_unseen, of_kernel, of_late_find
from .cause import Cause, hidden_write
from .contract import Difference
from .draws import DrawChange, draw_change
from .foreign import behind_departure, in_reference, is_old, of_hidden_write, of_leaf
from .host import through_host
from .operands import is_gone, missing, missing_before, of_contract, of_operand
from .origin import Origin
from .pairs import Pairs, inputs_key
from .side import Side
from .values import base_name

_MAY_COME_FROM_PYTHON: Final = ("data", "state", "inputs", "arguments", "code", "missing")


class Judge:
    """Finds causes for the departures of ``candidate`` from ``reference``."""

    def __init__(self, reference: Side, candidate: Side) -> None:
        self.reference, self.candidate = reference, candidate
        self.pairs = Pairs(reference, candidate)
        self.forward, self.backward = self.pairs.forward, self.pairs.backward
        self.declared: Callable[[str], str | None] = lambda _: None
        """By which pattern an operator is declared unstable: that it gives other bits is no departure then."""

    # The departures that reach the contract

    def _departures(self, found: list[Difference]) -> tuple[list[Origin], list[Origin]]:
        """The candidate's and the reference's departures behind contract values that differ."""
        theirs = self.backward.behind([d.reference for d in found if d.reference is not None])
        ours = self.forward.behind([d.candidate for d in found if d.candidate is not None])
        return joined(self.pairs, ours, theirs), theirs

    def unstable_behind(self, difference: Difference) -> str | None:
        """The pattern of an operator that is declared unstable, if such ones alone make a contract value differ."""
        ours, theirs = self._departures([difference])
        if self._undeclared(ours) or self._undeclared(theirs):
            return None
        return next((self.declared(origin.event.op) for origin in ours), None)

    def _undeclared(self, origins: list[Origin]) -> list[Origin]:
        return [origin for origin in origins if not origin.contra or self.declared(origin.event.op) is None]

    def explain(self, found: list[Difference], rng: DrawChange | None) -> Cause | None:
        """The cause behind contract values that differ; None if no operator of either run explains them."""
        ours, theirs = map(self._undeclared, self._departures(found))
        if any(origin.event.kind == "op" for origin in theirs):
            ours = [origin for origin in ours if not _is_set_by_python(origin)]
        if rng is not None and not _is_part_of(rng, ours, theirs) and (not ours or rng.position <= ours[0].index):
            return self._of_draw(rng)
        cause = self._of_departures(found, ours, theirs)
        if cause is not None and cause.cause in _MAY_COME_FROM_PYTHON:
            origin = through_host(self.pairs, cause)
            if origin is not None:
                return self.of(origin, theirs)
        return cause

    def _of_departures(self, found: list[Difference], ours: list[Origin], theirs: list[Origin]) -> Cause | None:
        earlier = begins_earlier(ours, theirs)
        sinks_reference = [d.reference for d in found if d.reference is not None]
        skipped = skipped_copy(self.pairs, sinks_reference) if earlier or not ours else None
        if theirs and not ours:
            foreign = in_reference(self.pairs, theirs)
            if foreign is not None:
                return foreign
            mine = self.pairs.like_of_reference(theirs[0].event)
            if mine is not None:  # done, but on something else, so that nothing here came of it
                origin = self.forward.origin(mine) or next(iter(self.forward.behind([mine])), None)
                if origin is not None:
                    return self.of(origin, theirs)
        if theirs and (not ours or (earlier and not self._is_from_outside(ours[0]))):
            absent = [event for event in (skipped, theirs[0].event) if event is not None]
            return missing(self.pairs, min(absent, key=lambda e: e.index))
        if not ours:
            return missing(self.pairs, skipped) if skipped is not None else self._exchanged(found)
        cause = self.of(ours[0], theirs)
        if cause.cause == "missing":  # so what the reference did before it and the candidate does not came first
            gone = (origin.event for origin in theirs if origin.leaf is None and is_gone(self.pairs, origin.event))
            return missing(self.pairs, min([cause.event, *gone], key=lambda e: e.index))
        return cause

    def _is_from_outside(self, origin: Origin) -> bool:
        """Whether a departure is that of a leaf, and not of what the reference had in a step before."""
        leaf = origin.leaf
        return leaf is not None and (leaf.kind != "outside" or not is_old(self.pairs, origin.event, leaf))

    def _exchanged(self, found: list[Difference]) -> Cause | None:
        """Contract values that the other run has too, but under another name or at another time."""
        for difference in found:
            if difference.reference is not None and difference.candidate is not None:
                cause = of_contract(self.pairs, difference.candidate, difference.reference)
                if cause is not None:
                    return cause
        return None

    def passing(self, step: int) -> list[tuple[Origin, list[Origin]]]:
        """All departures of a step in order, each as ``of`` takes it."""
        theirs = list(self.backward.all_in(step))
        ours = joined(self.pairs, list(self.forward.all_in(step)), theirs)
        return [(origin, theirs) for origin in self._undeclared(ours)]

    # The cause of one departure

    def of(self, origin: Origin, theirs: list[Origin]) -> Cause:
        """The cause of one departure of the candidate. ``theirs``: the reference's departures, for its side of it."""
        event, leaf = origin.event, origin.leaf
        like = self.pairs.like(event)
        foreign = in_reference(self.pairs, theirs)
        if foreign is not None and behind_departure(self.pairs, event, theirs):
            return foreign
        if hidden_write(event) and base_name(event.op) not in self.reference.view(event.step).hidden:
            return of_hidden_write(event, like)
        if leaf is not None and leaf.kind in ("overwritten", "torn"):
            return of_arguments_of_unseen(self.pairs, event) or of_leaf(self.pairs, event, leaf)
        if origin.contra:
            return of_kernel(self.pairs, event)
        if event.draw is not None and event.draw.before != event.draw.after:
            random = self._of_random(event)
            if random is not None:
                return random
        if leaf is not None and leaf.kind == "uninitialised":
            return of_leaf(self.pairs, event, leaf)
        found = (
            of_arguments(self.pairs, event)
            or of_arguments_of_unseen(self.pairs, event)
            or of_operand(self.pairs, event, theirs)
        )
        if found is not None:
            return self._with_what_is_gone(found, theirs)
        if leaf is not None and (like is not None or not is_old(self.pairs, event, leaf)):
            return of_leaf(self.pairs, event, leaf)
        return of_late_find(self.pairs, event, like) or self._of_code(event, like)

    # Draws

    def _of_random(self, event: Event) -> Cause | None:
        assert event.draw is not None
        likes = [
            e
            for e in self.reference.view(event.step).events
            if e.draw is not None and base_name(e.op) == base_name(event.op)
        ]
        same = [e for e in likes if e.draw is not None and e.draw.before == event.draw.before]
        if same:
            like = self.pairs.like(event)  # if the reference makes this draw as well, it made another one before
            gone = None if like is None else next((e for e in same if is_gone(self.pairs, e)), None)
            return of_arguments(self.pairs, event) or (None if gone is None else missing(self.pairs, gone))
        change = self.draw_change(event.step)
        if change is not None and change.what == "inserted" and change.event.index == event.index:
            return None  # not only later draws see another state: what it drew is made use of
        if change is not None and change.position <= event.index:
            return self._of_draw(change)
        return Cause("random", event, like=self.pairs.like(event), detail="drew from another generator state")

    def draw_change(self, step: int) -> DrawChange | None:
        """The first draw up to a step that the two runs did not make alike."""
        return draw_change(self.reference, self.candidate, step)

    def _of_draw(self, change: DrawChange) -> Cause:
        event, other = change.event, change.other
        if change.what == "arguments" and other is not None:
            if event.args == other.args:  # another shape or dtype
                return Cause("code", event, like=other, computes=event, before=(other,), after=(event,))
            return arguments(event, other)
        words = {
            "inserted": "this draw is made by the candidate only; later draws see another generator state",
            "missing": "this draw is made by the reference only; later draws see another generator state",
            "state": "drew from another generator state",
        }
        return Cause("random", event, change.side, other, words[change.what] + change.why, draw=change)

    # Code

    def _of_code(self, event: Event, like: Event | None) -> Cause:
        """Other operators (rule 13): the candidate's block, or what the reference did and the candidate does not."""
        if like is not None:
            absent = missing_before(self.pairs, like)
            if absent is not None:
                return missing(self.pairs, absent)
        before, after = self.pairs.alignment(event.step).blocks(event)
        block = [e for e in _feeding(event, after) if e.phase == event.phase] or [event]
        return Cause("code", block[0], like=like, computes=event, before=tuple(before), after=tuple(after) or (event,))

    def _with_what_is_gone(self, cause: Cause, theirs: list[Origin]) -> Cause:
        """Other arguments are other code where the reference did more at that place first, as counting batches in
        training, or another optimizer's average.
        """
        event, like = cause.event, cause.like
        if cause.cause != "arguments" or like is None:
            return cause
        gone = [
            origin.event
            for origin in theirs
            if origin.leaf is None
            and origin.index < like.index
            and _where(origin.event) == _where(like)
            and is_gone(self.pairs, origin.event)
            and not self.pairs.unmatched(like.step).by_inputs.get(inputs_key(origin.event))
        ]
        if not gone:
            return cause
        names = ", ".join(dict.fromkeys(base_name(e.op) for e in gone))
        detail = f"{names} left out before it; {cause.detail}"
        return Cause("code", event, like=like, detail=detail, computes=event, before=(*gone, like), after=(event,))

    def earlier_alike(self, cause: Cause) -> Cause:
        """The same cause at the same operator in an earlier step, where it did not reach the contract yet."""
        event = cause.event
        if cause.side != "candidate":
            return cause
        where = (event.op, event.module, PHASES.index(event.phase))
        for step in [s for s in self.candidate.steps if s < event.step]:
            view = self.candidate.view(step)
            for earlier in view.where(view.is_at(*where) & self.forward.suspects(step)):
                origin = self.forward.origin(earlier)
                found = self.of(origin, []) if origin is not None else None
                if found is not None and found.cause == cause.cause:
                    return found
        return cause


def _where(event: Event) -> tuple[object, ...]:
    return event.step, event.phase, event.module


def _is_set_by_python(origin: Origin) -> bool:
    """Whether a departure is no more than a contract value from outside, as a count of steps."""
    return origin.event.kind == "contract" and origin.leaf is not None and origin.leaf.kind == "outside"


def _is_part_of(change: DrawChange, ours: list[Origin], theirs: list[Origin]) -> bool:
    """Whether what a draw gave went into values that differ; else it matters by the state it left behind."""
    return any(origin.index == change.event.index for origin in (ours if change.side == "candidate" else theirs))


def _feeding(event: Event, block: list[Event]) -> list[Event]:
    """What of a block an event was made from, with the event itself."""
    inside = {e.index: e for e in block if e.index <= event.index}
    queue, found = [event.index], set()
    while queue:
        index = queue.pop()
        if index in inside and index not in found:
            found.add(index)
            queue += [writer for read in inside[index].reads for writer in read.writers]
    return [inside[index] for index in sorted(found)]
