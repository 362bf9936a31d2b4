"""One operator call: what it reads before it runs, what it wrote after."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ..trace.model import ASSUMED, HIDDEN, KINDS, NO_VALUE, NULL, RECOMPUTED, STRIDED, UNHASHED, UNREAD, WEAK
from .ahead import Ahead
from .links import ALLOCATED, GROWN, LEFT, SHOWN, Place, leave, read, write
from .look import BY_LINKS, LINKED, Look
from .results import collect, slots_of
from .rows import NO_DRAW, ReadRow
from .schema import OpInfo
from .text import OVERWRITTEN, SCRATCH, Arguments

if TYPE_CHECKING:
    from .session import Session

_OP, _VIEW, _COPY, _ALLOC, _REGION = (KINDS.index(kind) for kind in ("op", "view", "copy", "alloc", "region"))
_BACKWARD: Final = 3  # index of "backward" in PHASES
_ALWAYS_CHECKED: Final = 1 << 15
"""Arguments up to so many bytes are hashed again after every call; larger ones of built-in operators, which write
what they declare, only in an operator's first calls."""
_FIRST_CALLS: Final = 4
_MAX_GARBAGE: Final = 1 << 20
"""Up to so many bytes of new memory are hashed, to notice that somebody fills it."""

_Change = tuple[Look, int, int, Place | None]  # what is there now, slot, what was done, where


class Call:
    """One operator call, between its reads and its writes.

    What it learns of memory is worked out by ``_link_reads`` and ``_link_writes``: at once, or where values of a device
    are still on their way at the end of the step, in the same order.
    """

    __slots__ = (
        "_ahead",
        "_changes",
        "_draw",
        "_generator",
        "_given",
        "_marks",
        "_seen",
        "_session",
        "_state",
        "_suspects",
        "_versions",
        "flags",
        "info",
        "kind",
        "lane",
        "module",
        "numbers",
        "phase",
        "reads",
        "stack",
        "text",
        "writing",
    )

    def __init__(self, session: Session, info: OpInfo, given: Arguments) -> None:
        self._session = session
        self.info = info
        self._given = given
        self.text = given.text
        self._generator: torch.Generator | None = None
        self._seen: list[Look] = []
        self.reads: list[ReadRow] = []
        self.writing: list[Place] = []
        self._ahead: Ahead | None = None
        self.kind = info.kind
        self.numbers: Sequence[int] = range(len(given.tensors))
        """Of the tensors that are still held, among all tensor arguments."""

    def before(self, _args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Where the call comes from and what it is about to read. ``options``: its keyword arguments."""
        session, info, given = self._session, self.info, self._given
        if session.crumbs is not None:
            session.crumbs[: len(info.crumb)] = info.crumb
        self.phase = phase = session.phase()
        self.flags = info.flags
        if phase == _BACKWARD and torch.is_grad_enabled() and not session.create_graph:
            self.flags |= RECOMPUTED
        self._locate(phase)
        self._marks = marks = given.marks
        looks = session.looks
        assume = session.assumes and self._may_assume()
        with session.lock:
            if marks and max(marks) >= OVERWRITTEN:
                read = [t for t, mark in zip(given.tensors, marks) if mark < OVERWRITTEN]  # noqa: B905 - as many
                found = iter(looks.all(read, info.name, assume=assume))
                self._seen = [
                    looks.beside(t) if mark >= OVERWRITTEN else next(found)
                    for t, mark in zip(given.tensors, marks)  # noqa: B905
                ]
            else:
                self._seen = looks.all(given.tensors, info.name, assume=assume)
            if session.bytes_left is not None:
                session.spend(sum(place[3] - place[2] for _, _, place, _ in self._seen if place is not None))
            if session.devices.used:
                if session.assumes:
                    self._ahead = Ahead()
                    self._ahead.reads(((look[0], look[2]) for look in self._seen), marks)
                session.link_late(self._link_reads, info)
            else:
                self._link_reads()
        if info.random or not info.builtin:
            self._generator = given.generator or session.default_generator(given.tensors, options)
            self._state = session.generator_state(self._generator)

    def _may_assume(self) -> bool:
        """Whether arguments need no look at level ``op``: not where one is taken again after the call."""
        info = self.info
        return info.trusted and (info.kind != _OP or self._session.num_calls.get(info.name, 0) >= _FIRST_CALLS)

    def _link_reads(self) -> None:
        """Who wrote what is read. The lock is held."""
        reads, versions, number = self.reads, [], 0
        for found, spec, place, again in self._seen:
            mark = self._marks[number]
            number += 1
            if found < 0:
                found = self._resolved(found, place)
            if place is None:
                reads.append((found, spec, UNREAD if mark >= OVERWRITTEN else STRIDED, ()))
                versions.append((0, 0))
                continue
            if found:
                writers, flags = read(place, found)
                if again is BY_LINKS:
                    flags |= ASSUMED
                reads.append((found, spec, flags if len(place[1]) == 3 else flags | STRIDED, writers))
            else:
                reads.append((found, spec, UNREAD if mark >= OVERWRITTEN else 0, ()))
            region = place[0]
            if mark and mark != SCRATCH:
                region.writing += 1
                self.writing.append(place)
            versions.append((region.version, region.writing))
        self._versions = versions

    def _locate(self, phase: int) -> None:
        session = self._session
        module = session.modules.current()
        if phase == _BACKWARD and module is None and not self.flags & RECOMPUTED:
            place = session.origins.of_current_node()
            if place is not None:
                self.module, self.stack = place
                return
        self.module = NULL if module is None else session.strings.module(module)
        self.stack = session.stacks.current(sys._getframe(2).f_back)  # None in autograd's threads of a device

    def resume(
        self, place: tuple[int, int, int, int], seen: list[Look], drawn: tuple[torch.Generator, int] | None
    ) -> None:
        """Take over a call whose first half another recorder made; what it linked comes by ``take_links``.

        ``place``: phase, flags, module, stack; ``drawn``: the generator of a random operator, and its state before.
        """
        self.phase, self.flags, self.module, self.stack = place
        self._marks = self._given.marks
        self._seen = seen
        if drawn is not None:
            self._generator, self._state = drawn

    def take_links(self, reads: list[ReadRow], writing: list[Place], versions: list[tuple[int, int]]) -> None:
        """What another recorder linked of the reads."""
        self.reads, self.writing, self._versions = reads, writing, versions

    def release_inputs(self) -> None:
        """Let go of inputs that the call does not write: it may free them while it runs, as in a bare run."""
        given = self._given
        self.numbers = [n for n, mark in enumerate(given.marks) if mark]
        given.tensors = [given.tensors[n] for n in self.numbers]
        given.marks = [given.marks[n] for n in self.numbers]

    def abandon(self) -> None:
        """The call raised: nothing is recorded of it, and its arguments are no longer being written."""
        session = self._session
        self._given.tensors = []
        with session.lock:
            if self._ahead is not None:
                self._ahead.ends()
            if session.devices.used:
                session.link_late(self._stop_writing, self.info)
            else:
                self._stop_writing()

    def _stop_writing(self) -> None:
        for place in self.writing:
            place[0].writing -= 1
        self.writing = []

    def after(self, result: Any) -> None:
        """What the call wrote; appends the event."""
        session, info, given = self._session, self.info, self._given
        if self.phase != _BACKWARD and torch.is_grad_enabled():
            session.origins.remember(self.module, self.stack)
        outputs: list[torch.Tensor] = []
        if type(result) is torch.Tensor:
            outputs.append(result)
        else:
            collect(result, outputs)
        tensors = given.tensors
        slots: list[int] = list(range(len(outputs)))
        if info.written:
            changed = [k for k, mark in enumerate(given.marks) if mark and mark != SCRATCH]
            in_place = {id(tensors[k]) for k in changed}
            slots = [slot for slot in slots if id(outputs[slot]) not in in_place]
            made = [outputs[slot] for slot in slots] + [tensors[k] for k in changed]
            slots += [~self.numbers[k] for k in changed]
        else:
            changed, made = [], outputs
        if info.kind == _COPY:
            self.kind = self._kind_of_copy(changed, outputs)
        self._draw = NO_DRAW
        if self._generator is not None:
            state = session.generator_state(self._generator)
            if info.random or state != self._state:
                self._draw = (session.generator_number(self._generator), self._state, state)
        self.lane = session.lane_number()
        scratch = slots_of(info.scratch_outputs, result) if info.scratch_outputs else frozenset()
        with session.lock:
            self._changes = self._look_at(made, slots, scratch)
            self._suspects = self._look_again(tensors) if info.kind == _OP and tensors else []
            given.tensors = []
            self._conclude()

    def _look_at(
        self, made: list[torch.Tensor], slots: list[int], scratch: frozenset[int] = frozenset()
    ) -> list[_Change]:
        """What the call left in its outputs and in the arguments that it wrote. ``scratch``: slots without value."""
        looks, info = self._session.looks, self.info
        if info.resizes:
            return [self._resized(tensor, slot) for tensor, slot in zip(made, slots, strict=True)]
        if info.kind == _ALLOC:
            return [self._allocated(tensor, slot) for tensor, slot in zip(made, slots, strict=True)]
        if info.kind == _VIEW:
            held = self._given.tensors
            base = (held[0], self._seen[0]) if held and self.numbers[0] == 0 else None
            seen = [looks.at(tensor, info.name, assume=self._session.assumes, base=base) for tensor in made]
            return [(look, slot, SHOWN, look[2]) for look, slot in zip(seen, slots, strict=True)]
        seen = looks.all(made, info.name, made=True)
        changes: list[_Change] = []
        for look, slot in zip(seen, slots, strict=True):
            change = LEFT
            if slot in scratch:
                change = ALLOCATED
            elif info.kind == _REGION and slot >= 0 and look[2] is not None and self._was_given(look[2]):
                change = SHOWN
            changes.append((look, slot, change, look[2]))
        return changes

    def _allocated(self, tensor: torch.Tensor, slot: int) -> _Change:
        looks = self._session.looks
        look = looks.beside(tensor, made=True)
        if look[2] is not None and look[2][3] - look[2][2] <= _MAX_GARBAGE:
            look = looks.at(tensor, self.info.name, made=True)
        return look, slot, ALLOCATED, look[2]

    def _resized(self, tensor: torch.Tensor, slot: int) -> _Change:
        """A resize keeps the bytes that there were; only those behind them are new."""
        looks = self._session.looks
        looks.memory.resized(tensor)
        before = self._seen[0][2] if self._seen else None
        look = looks.beside(tensor)
        after = look[2]
        if after is None:
            return look, slot, ALLOCATED, None
        if before is None or before[0] is not after[0] or after[3] > before[3]:
            lo = before[3] if before is not None and before[0] is after[0] else after[2]
            return look, slot, GROWN, (after[0], (lo, after[3], tensor.dtype), lo, after[3], True)
        self.kind = _VIEW
        look = looks.at(tensor, self.info.name)
        return look, slot, SHOWN, look[2]

    def _was_given(self, place: Place) -> bool:
        """Whether a compiled graph handed out memory that it was given (what it saves for backward)."""
        return any(given is not None and given[0] is place[0] for _, _, given, _ in self._seen)

    def _look_again(self, tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
        """Read-only arguments that the call may have changed all the same: their number, and what they are now."""
        info, session = self.info, self._session
        thorough = not info.trusted
        if not thorough:
            calls = session.num_calls.get(info.name, 0)
            if calls < _FIRST_CALLS:
                session.num_calls[info.name] = calls + 1
                thorough = True
        found: list[tuple[int, int]] = []
        chosen: list[int] = []
        held: list[torch.Tensor] = []
        written = [place[0] for place in self.writing] if self.writing else ()
        for tensor, n in zip(tensors, self.numbers):  # noqa: B905 - as many
            look = self._seen[n]
            place = look[2]
            if not look[0] or place is None or self._marks[n] or place[0] in written or look[3] is BY_LINKS:
                continue
            if info.trusted and look[3] is not None:
                if thorough or place[3] - place[2] <= _ALWAYS_CHECKED:
                    now = session.looks.again(look)
                    if now != look[0]:
                        found.append((n, now))
            elif thorough or place[3] - place[2] <= _ALWAYS_CHECKED:
                chosen.append(n)
                held.append(tensor)
        if held:  # on a device, strided, or of an operator that may have moved their memory
            again = session.looks.all(held, info.name)
            found += [(n, look[0]) for n, look in zip(chosen, again, strict=True) if look[0] != self._seen[n][0]]
        return found

    def _conclude(self) -> None:
        """Nothing is left to look at. The lock is held."""
        session = self._session
        if session.devices.used:
            if session.assumes:
                self._write_ahead(self._ahead or Ahead())
            session.link_late(self._link_writes, self.info)
        else:
            self._link_writes()

    def _write_ahead(self, ahead: Ahead) -> None:
        for (found, *_), _, change, place in self._changes:
            if place is not None:
                ahead.leaves(change, place, found)
        for n, _ in self._suspects if not self.info.trusted else ():
            place = self._seen[n][2]
            assert place is not None
            ahead.suspects(place)
        ahead.ends()

    def _resolved(self, found: int, place: Place | None) -> int:
        """The value that a look's number stands for, when links are worked out."""
        if found == LINKED and place is not None:
            return place[0].seen_as(place[1])
        return self._session.resolved(found)

    def _link_writes(self) -> None:
        """What the call did to memory, and the event itself. The lock is held."""
        session = self._session
        if self.kind == _COPY and session.assumes:
            self._verify_copied()
        event, rows = session.rows.num_events, []
        for (found, spec, seen, _), slot, change, place in self._changes:
            if found < 0:
                found = self._resolved(found, seen)
            if place is not None:
                leave(change, place, found, event)
            if change in (LEFT, SHOWN):
                flags = UNHASHED if not found else WEAK if session.looks.is_weak(spec, found) else 0
                rows.append((found, spec, slot, flags))
            else:
                rows.append((NO_VALUE, spec, slot, 0))
        for n, now in self._suspects:
            place, (version, writing), before = self._seen[n][2], self._versions[n], self.reads[n]
            now = session.resolved(now)
            assert place is not None
            idle = not writing and not place[0].writing and place[0].version == version
            if idle and now not in (NO_VALUE, before[0]):
                write(place, now, event)
                rows.append((now, before[1], ~n, HIDDEN))
        if self.writing:
            self._stop_writing()
        session.append(self, rows, self._draw)

    def _verify_copied(self) -> None:
        """What a copy made is what it read: a value that was assumed is known now."""
        sources = [number for number, mark in enumerate(self._marks) if mark != OVERWRITTEN]
        for number, (look, *_) in zip(sources, self._changes, strict=False):
            (value, spec, flags, writers), place = self.reads[number], self._seen[number][2]
            if not flags & ASSUMED or look[1] != spec or not look[0] or place is None:
                continue
            flags &= ~ASSUMED
            made = self._session.resolved(look[0])
            if made != value and self._versions[number] == (place[0].version, place[0].writing):
                value, flags = made, flags | read(place, made)[1]
            self.reads[number] = (value, spec, flags, writers)

    def _kind_of_copy(self, changed: list[int], outputs: list[torch.Tensor]) -> int:
        """A copy to another dtype, or one that broadcasts, computes something."""
        given = self._given
        sources = [t for t, mark in zip(given.tensors, given.marks, strict=True) if mark != OVERWRITTEN]
        results = [given.tensors[k] for k in changed] or outputs
        same = len(sources) == len(results) and all(
            a.dtype == b.dtype and a.shape == b.shape for a, b in zip(sources, results, strict=True)
        )
        return _COPY if same else _OP
