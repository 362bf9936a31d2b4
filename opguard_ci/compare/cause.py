"""Why a run departs from the other: the cause of an origin (verdict.md, rules 9-13). Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from ..trace.model import HIDDEN, HOST, OVER, STATE, UNREAD, Event, Read
from .align import Alignment, align, place
from .arguments import changed_arguments
from .draws import DrawChange, draws, first_change
from .origin import Leaf, Origin, Origins
from .values import Side, base_name, full_key, read_values, result, written


@dataclass(frozen=True, slots=True)
class Cause:
    """What a divergence is put down to, and the events that show it."""

    cause: str
    event: Event
    side: str = "candidate"
    like: Event | None = None
    """The other side's event at the same place."""
    detail: str = ""
    computes: Event | None = None
    """For ``code``: the first event of the block that made a new value."""
    before: tuple[Event, ...] = ()
    after: tuple[Event, ...] = ()
    leaf: Leaf | None = None
    operand: int | None = None
    """For ``inputs``, ``data`` and ``state``: the number of the read that differs."""


class Judge:
    """Finds causes for the departures of ``candidate`` from ``reference``."""

    def __init__(self, reference: Side, candidate: Side) -> None:
        self.reference, self.candidate = reference, candidate
        self.forward = Origins(candidate, reference)  # what the candidate does and the reference does not
        self.backward = Origins(reference, candidate)
        self._alignments: dict[int, Alignment] = {}
        self._unmatched: dict[int, list[Event]] = {}

    def alignment(self, step: int) -> Alignment:
        """The two sides' operators of a step, laid side by side."""
        if step not in self._alignments:
            self._alignments[step] = align(self.reference.view(step).events, self.candidate.view(step).events)
        return self._alignments[step]

    def unmatched_in_reference(self, step: int) -> list[Event]:
        """The reference's operators of a step that the candidate did not do alike."""
        if step not in self._unmatched:
            spare = Counter(full_key(event) for event in self.candidate.view(step).events if event.kind == "op")
            left = []
            for event in self.reference.view(step).events:
                if event.kind != "op":
                    continue
                key = full_key(event)
                if spare[key] > 0:
                    spare[key] -= 1
                else:
                    left.append(event)
            self._unmatched[step] = left
        return self._unmatched[step]

    # The departures that reach the contract

    def explain(
        self, sinks_candidate: list[Event], sinks_reference: list[Event], rng: DrawChange | None
    ) -> Cause | None:
        """The cause behind contract values that differ; None if no operator of either run explains them."""
        ours = self._joined(self.forward.behind(sinks_candidate), self.backward.behind(sinks_reference))
        theirs = self.backward.behind(sinks_reference)
        if rng is not None and (not ours or rng.position <= ours[0].index):
            return self._of_draw(rng)
        if theirs and (not ours or theirs[0].event.step < ours[0].event.step):
            skipped = self._skipped_copy(sinks_reference, ours)
            if not ours or ours[0].leaf is None:
                return self._missing(skipped or theirs[0])
        if not ours:
            skipped = self._skipped_copy(sinks_reference, ours)
            if skipped is not None:
                return self._missing(skipped)
            return None
        cause = self.of(ours[0], theirs)
        if cause.cause in ("data", "state", "inputs", "arguments", "code"):
            earlier = self._through_host(cause.event)
            if earlier is not None:
                return self.of(earlier, theirs)
        return cause

    def _joined(self, ours: list[Origin], theirs: list[Origin]) -> list[Origin]:
        """Rule 9: departures of the reference whose counterparts in the candidate heal before they are new there."""
        found = {origin.index: origin for origin in ours}
        for origin in theirs:
            event = origin.event
            if event.kind != "op":
                continue
            inputs = (event.op, read_values(event), tuple(read.spec for read in event.reads))
            for mine in self.candidate.view(event.step).events:
                if mine.kind != "op" or (mine.op, read_values(mine), tuple(read.spec for read in mine.reads)) != inputs:
                    continue
                if mine.args == event.args:
                    if self.forward.contra(mine):
                        found.setdefault(mine.index, Origin(mine, None, True))
                elif self._is_unmatched(mine):
                    found.setdefault(mine.index, Origin(mine, None, False))
        return [found[index] for index in sorted(found)]

    def _is_unmatched(self, event: Event) -> bool:
        key = full_key(event)
        return all(full_key(other) != key for other in self.reference.view(event.step).events if other.kind == "op")

    def _skipped_copy(self, sinks: list[Event], ours: list[Origin]) -> Origin | None:
        """The first in-place copy behind the reference's sinks that the candidate does not make."""
        found: dict[int, Event] = {}
        queue = [read for sink in sinks for read in sink.reads]
        visited: set[int] = set()
        while queue:
            read = queue.pop()
            for writer in self.reference.writers(read):
                if writer.index in visited:
                    continue
                visited.add(writer.index)
                if writer.kind == "copy" and any(write.slot < 0 for write in writer.writes):
                    key = (base_name(writer.op), read_values(writer), result(writer))
                    theirs = self.candidate.view(writer.step).events
                    if all((base_name(e.op), read_values(e), result(e)) != key for e in theirs if e.kind == "copy"):
                        found[writer.index] = writer
                if writer.kind == "copy" or self.backward.new(writer):
                    queue += writer.reads
        if not found:
            return None
        first = found[min(found)]
        return Origin(first, None, False)

    def _through_host(self, event: Event) -> Origin | None:
        """Rule 12: an earlier departure that reached Python as a number."""
        best: Origin | None = None
        for step in [s for s in self.candidate.steps if s <= event.step]:
            hosts = [e for e in self.candidate.view(step).events if e.index < event.index and e.flags & HOST]
            for origin in self.forward.behind(hosts):
                if origin.index < event.index and (best is None or origin.index < best.index):
                    best = origin
            if best is not None:
                return best
        return None

    # The cause of one departure

    def of(self, origin: Origin, theirs: list[Origin]) -> Cause:
        """The cause of one departure of the candidate. ``theirs``: the reference's departures, for its side of it."""
        event, leaf = origin.event, origin.leaf
        aligned = self.alignment(event.step)
        like = aligned.counterpart(event)
        foreign = self._on_reference_side(event, like, theirs)
        if foreign is not None:
            return foreign
        if hidden_write(event) and base_name(event.op) not in self.reference.view(event.step).hidden:
            return Cause(
                "hidden-mutation",
                event,
                like=like,
                detail=f"{hidden_argument(event)} is read-only by its schema but was changed",
            )
        if leaf is not None and leaf.kind == "overwritten":
            return Cause("overwritten", event, like=like, leaf=leaf, operand=_operand(event, leaf))
        if origin.contra:
            likes = self.reference.view(event.step).results
            same = next(
                (
                    e
                    for found in likes.values()
                    for e in found
                    if (e.op, e.args, read_values(e)) == (event.op, event.args, read_values(event))
                ),
                like,
            )
            return Cause("kernel", event, like=same, detail="same operator, arguments and inputs; other output")
        if event.draw is not None and event.draw.before != event.draw.after:
            random = self._of_random(event)
            if random is not None:
                return random
        if leaf is not None and leaf.kind == "uninitialised":
            return Cause("uninitialised", event, like=like, leaf=leaf, operand=_operand(event, leaf))
        other = self._same_inputs_other_arguments(event)
        if other is not None:
            return Cause("arguments", event, like=other, detail=changed_arguments(other.args, event.args))
        by_operand = self._of_operand(event, like, theirs)
        if by_operand is not None:
            return by_operand
        if leaf is not None:
            kind = "state" if leaf.read.flags & STATE else "data"
            return Cause(kind, event, like=like, leaf=leaf, operand=_operand(event, leaf))
        return self._of_code(event, like)

    def _on_reference_side(self, event: Event, like: Event | None, theirs: list[Origin]) -> Cause | None:
        """Rule 11: foreign, hidden and unwritten memory may lie in the reference."""
        for origin in theirs[:1]:
            leaf = origin.leaf
            hidden = (
                hidden_write(origin.event)
                and base_name(origin.event.op) not in self.candidate.view(origin.event.step).hidden
            )
            if not hidden and (leaf is None or leaf.kind not in ("overwritten", "uninitialised")):
                continue
            if like is not None and (origin.index == like.index or self._feeds(origin.event, like)):
                mine = self.alignment(origin.event.step).counterpart_of_reference(origin.event)
                if hidden:
                    detail = f"{hidden_argument(origin.event)} is read-only by its schema but was changed"
                    return Cause("hidden-mutation", origin.event, "reference", mine, detail)
                assert leaf is not None
                return Cause(
                    leaf.kind, origin.event, "reference", mine, leaf=leaf, operand=_operand(origin.event, leaf)
                )
        return None

    def _feeds(self, source: Event, sink: Event) -> bool:
        """Whether the reference's ``sink`` was made, through new values, from what ``source`` wrote."""
        queue, visited = [sink], {sink.index}
        while queue:
            event = queue.pop()
            for read in event.reads:
                producers, _ = self.backward.producers(read)
                for producer in producers:
                    if producer.index == source.index:
                        return True
                    if producer.index not in visited and producer.index > source.index:
                        visited.add(producer.index)
                        queue.append(producer)
        return False

    def _of_random(self, event: Event) -> Cause | None:
        assert event.draw is not None
        likes = [
            e
            for e in self.reference.view(event.step).events
            if e.draw is not None and base_name(e.op) == base_name(event.op)
        ]
        same_state = [e for e in likes if e.draw is not None and e.draw.before == event.draw.before]
        if same_state:
            other = next((e for e in same_state if e.args != event.args), None)
            if other is not None:
                return Cause("arguments", event, like=other, detail=changed_arguments(other.args, event.args))
            return None
        change = self.draw_change(event.step)
        if change is not None and change.position <= event.index:
            return self._of_draw(change)
        return Cause(
            "random",
            event,
            like=self.alignment(event.step).counterpart(event),
            detail="drew from another generator state",
        )

    def draw_change(self, step: int) -> DrawChange | None:
        """The first draw up to a step that the two runs did not make alike."""
        return first_change(draws(_until(self.reference, step)), draws(_until(self.candidate, step)))

    def _of_draw(self, change: DrawChange) -> Cause:
        event, other = change.event, change.other
        if change.what == "arguments" and other is not None:
            return Cause("arguments", event, like=other, detail=changed_arguments(other.args, event.args))
        words = {
            "inserted": "this draw is made by the candidate only; later draws see another generator state",
            "missing": "this draw is made by the reference only; later draws see another generator state",
            "state": "drew from another generator state",
        }
        return Cause("random", event, change.side, other, words[change.what])

    def _same_inputs_other_arguments(self, event: Event) -> Event | None:
        """An unmatched event of the reference with the same operator, inputs and shapes, and other arguments."""

        def alike(other: Event) -> bool:
            return (
                base_name(other.op) == base_name(event.op)
                and other.args != event.args
                and read_values(other) == read_values(event)
                and [w.spec for w in written(other)] == [w.spec for w in written(event)]
            )

        spare = [other for other in self.unmatched_in_reference(event.step) if alike(other)]
        found = [other for other in spare if other.op == event.op] or spare
        same_phase = [e for e in found if e.phase == event.phase] or found
        return same_phase[0] if same_phase else None

    def _of_operand(self, event: Event, like: Event | None, theirs: list[Origin]) -> Cause | None:
        """The same call on other operands: by where the operand that differs came from."""
        spare = [origin.event for origin in theirs] + self.unmatched_in_reference(event.step)
        alike = [
            e
            for e in spare
            if e.kind == "op" and e.op == event.op and e.step == event.step and place(e) == place(event)
        ]
        if like is not None and like in alike:
            alike = [like]
        if not alike or not any(self.backward.origin(e) for e in alike[:1]):
            return None
        other = alike[0]
        for number, (mine, others) in enumerate(zip(event.reads, other.reads, strict=False)):
            if mine.value == others.value or mine.flags & UNREAD:
                continue
            return Cause(self._operand_cause(mine, others), event, like=other, operand=number)
        return None

    def _operand_cause(self, mine: Read, others: Read) -> str:
        made, _ = self.forward.producers(mine)
        theirs, _ = self.backward.producers(others)
        if not made or not theirs:
            return "state" if (mine.flags | others.flags) & STATE else "data"
        if all(e.phase == "setup" for e in (*made, *theirs)):
            return "state"
        if all(e.phase == "data" for e in (*made, *theirs)):
            return "data"
        return "inputs"

    def _of_code(self, event: Event, like: Event | None) -> Cause:
        """Other operators (rule 13): the candidate's block, or what the reference did and the candidate does not."""
        aligned = self.alignment(event.step)
        if like is not None:
            missing = self._missing_before(like)
            if missing is not None:
                return self._missing(Origin(missing, None, False))
        before, after = aligned.blocks(event)
        block = list(takewhile(lambda e: e.index <= event.index, after))
        block = [e for e in block if e.phase == event.phase] or [event]
        return Cause("code", block[0], like=like, computes=event, before=tuple(before), after=tuple(after) or (event,))

    def _missing_before(self, like: Event) -> Event | None:
        """The reference's own operator behind its counterpart's other operand, if the candidate has none like it."""
        behind = self.backward.behind([like])
        aligned = self.alignment(like.step)
        for origin in behind:
            if origin.index < like.index and aligned.counterpart_of_reference(origin.event) is None:
                return origin.event
        return None

    def _missing(self, origin: Origin) -> Cause:
        event = origin.event
        aligned = self.alignment(event.step)
        mine = aligned.counterpart_of_reference(event)
        return Cause(
            "missing", event, "reference", mine, "the reference does this, the candidate does not", leaf=origin.leaf
        )

    def earlier_alike(self, cause: Cause) -> Cause:
        """The same cause at the same operator in an earlier step, where it did not reach the contract yet."""
        event = cause.event
        if cause.side != "candidate":
            return cause
        for step in [s for s in self.candidate.steps if s < event.step]:
            for origin in self.forward.all_in(step):
                other = origin.event
                if (other.op, other.module, other.phase) != (event.op, event.module, event.phase):
                    continue
                found = self.of(origin, list(self.backward.all_in(step)))
                if found.cause == cause.cause:
                    return found
        return cause


def hidden_write(event: Event) -> bool:
    """Whether an operator changed an argument that its schema calls read-only."""
    return any(write.flags & HIDDEN for write in event.writes)


def hidden_argument(event: Event) -> str:
    """The name of the argument that was changed in hiding."""
    number = next(~write.slot for write in event.writes if write.flags & HIDDEN)
    return argument_name(event.args, number)


def argument_name(args: str, number: int) -> str:
    """The name of tensor argument ``number`` in an argument text."""
    for part in args.split(", "):
        name, _, text = part.partition("=")
        if text.strip("[]") == f"%{number}":
            return name
    return f"tensor {number}"


def is_overwritten(event: Event) -> bool:
    """Whether an operator read bytes that changed behind our back."""
    return event.kind == "op" and any(read.flags & OVER for read in event.reads)


def _operand(event: Event, leaf: Leaf) -> int | None:
    return next((n for n, read in enumerate(event.reads) if read == leaf.read), None)


def _until(side: Side, step: int) -> list[Event]:
    return [event for s in side.steps if s <= step for event in side.view(s).events]
