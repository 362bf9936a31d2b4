"""One operator call: what it reads before it runs, what it wrote after.

What needs the tensors is done at the call: their values (or handles of them), where they lie. What follows from it, the
links between events, is worked out by ``_link_reads`` and ``_link_writes``, in the order of these moments over all
threads: at once, or at the end of the step if values of a device have to be waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ..trace.model import HIDDEN, HOST, KINDS, NO_VALUE, NULL, RANDOM, RECOMPUTED, STRIDED, UNHASHED, UNREAD, WEAK
from .fingerprint.quiet import Unhashable
from .fingerprint.tensors import value, values
from .links import Place, allocate, read, write
from .schema import OpInfo
from .text import OVERWRITTEN, READ, WRITTEN, Arguments

if TYPE_CHECKING:
    from .session import Session

_OP, _VIEW, _COPY, _ALLOC, _REGION = (KINDS.index(kind) for kind in ("op", "view", "copy", "alloc", "region"))
_BACKWARD: Final = 3  # index of "backward" in PHASES
_ALWAYS_CHECKED: Final = 1 << 15
"""Arguments up to so many bytes are hashed again after every call; larger ones of built-in operators, which write
what they declare, only in an operator's first calls."""
_FIRST_CALLS: Final = 4
_SAME_MEMORY: Final = 1 << 11
"""From so many bytes on it is cheaper to see that a view shows the same bytes than to hash them again."""
_MAX_GARBAGE: Final = 1 << 20
"""Up to so many bytes of new memory are hashed, to notice that somebody fills it."""

ReadRow = tuple[int, int, int, tuple[int, ...]]  # value, spec, flags, writers
WriteRow = tuple[int, int, int, int]  # value, spec, slot, flags

# What a call did to memory.
_SHOWN, _ALLOCATED, _WRITTEN, _GROWN = range(4)


class Call:
    """One operator call, between its reads and its writes."""

    __slots__ = (
        "_before",
        "_draw",
        "_found",
        "_generator",
        "_given",
        "_marks",
        "_outcome",
        "_session",
        "_specs",
        "_state",
        "_suspects",
        "flags",
        "info",
        "kind",
        "lane",
        "module",
        "numbers",
        "phase",
        "places",
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
        self.reads: list[ReadRow] = []
        self.places: list[Place | None] = []
        self.writing: list[Place] = []
        self.kind = info.kind
        self.numbers: Sequence[int] = range(len(given.tensors))
        """Of the tensors that are still held, among all tensor arguments."""

    def before(self, options: dict[str, Any]) -> None:
        """Where the call comes from and what it is about to read. ``options``: its keyword arguments."""
        session, info, given = self._session, self.info, self._given
        session.breadcrumb(info.crumb)
        self.phase = phase = session.phase()
        self._locate(phase)
        flags = (RANDOM if info.random else 0) | (HOST if info.host else 0)
        if phase == _BACKWARD and torch.is_grad_enabled() and not session.create_graph:
            flags |= RECOMPUTED
        self.flags = flags
        self._read(given.tensors, given.marks)
        if info.random or not info.builtin:
            self._generator = given.generator or session.default_generator(given.tensors, options)
            self._state = session.generator_state(self._generator)

    def _read(self, tensors: list[torch.Tensor], marks: list[int]) -> None:
        session = self._session
        self._marks = marks
        if max(marks, default=READ) >= OVERWRITTEN:
            found = iter(
                self._values([tensor for tensor, mark in zip(tensors, marks, strict=True) if mark < OVERWRITTEN])
            )
            self._found = [NO_VALUE if mark >= OVERWRITTEN else next(found) for mark in marks]
        else:
            self._found = self._values(tensors)
        self._specs = [session.spec(tensor) for tensor in tensors]
        with session.lock:
            place = session.memory.place
            self.places = [place(tensor) for tensor in tensors]
            session.link(self._link_reads, self.info)

    def _link_reads(self) -> None:
        """Who wrote what is read. The lock is held."""
        resolved, reads = self._session.resolved, self.reads
        for found, spec, mark, place in zip(self._found, self._specs, self._marks, self.places, strict=True):
            if found < 0:
                found = resolved(found)
            if mark >= OVERWRITTEN:
                reads.append((NO_VALUE, spec, UNREAD, ()))
            elif place is None or not found:
                reads.append((found, spec, STRIDED if place is None else 0, ()))
            else:
                writers, flags = read(place, found)
                if len(place[1]) > 3:
                    flags |= STRIDED
                reads.append((found, spec, flags, writers))
            if mark in (WRITTEN, OVERWRITTEN) and place is not None:
                place[0].writing += 1
                self.writing.append(place)
        self._before = [(0, 0) if p is None else (p[0].version, p[0].writing) for p in self.places]

    def _value(self, tensor: torch.Tensor) -> int:
        try:
            return value(tensor, self._session.devices)
        except Unhashable as reason:
            self._session.unhashed(self.info.name, reason)
            return NO_VALUE

    def _values(self, tensors: list[torch.Tensor]) -> list[int]:
        if len(tensors) > 1 and self._session.devices.used:
            try:
                return values(tensors, self._session.devices)
            except Unhashable:
                pass  # one of them: see below which
        return [self._value(tensor) for tensor in tensors]

    def _locate(self, phase: int) -> None:
        session = self._session
        module = session.modules.current()
        if phase == _BACKWARD and module is None:
            place = session.origins.of_current_node()
            if place is not None:
                self.module, self.stack = place
                return
        self.module = NULL if module is None else session.strings.module(module)
        self.stack = session.stacks.current(sys._getframe(2).f_back)  # None in autograd's threads of a device

    def release_inputs(self) -> None:
        """Let go of inputs that the call does not write: it may free them while it runs, as in a bare run."""
        given = self._given
        self.numbers = [n for n, mark in enumerate(given.marks) if mark]
        given.tensors = [given.tensors[n] for n in self.numbers]
        given.marks = [given.marks[n] for n in self.numbers]

    def abandon(self) -> None:
        """The call raised: nothing is recorded of it, and its arguments are no longer being written."""
        self._given.tensors = []
        with self._session.lock:
            self._session.link(self._stop_writing, self.info)

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
        _collect(result, outputs)
        tensors, numbers = given.tensors, self.numbers
        changed = [k for k, mark in enumerate(given.marks) if mark] if info.written else []
        in_place = {id(tensors[k]) for k in changed}
        made = [(tensor, slot) for slot, tensor in enumerate(outputs) if id(tensor) not in in_place]
        made += [(tensors[k], ~numbers[k]) for k in changed]
        if info.kind == _COPY:
            self.kind = self._kind_of_copy(changed, outputs)
        suspects = self._suspects_among(tensors) if info.kind == _OP and tensors else []
        known = [self._known(tensor) for tensor, _ in made]
        unknown = [tensor for (tensor, _), found in zip(made, known, strict=True) if found is None]
        looked_at = iter(self._values([*unknown, *(tensor for _, tensor in suspects)]))
        contents = [next(looked_at) if found is None else found for found in known]
        self._suspects = [(n, next(looked_at)) for n, _ in suspects]
        self._draw = (NULL, 0, 0)
        if self._generator is not None:
            state = session.generator_state(self._generator)
            if info.random or state != self._state:
                self._draw = (session.generator_number(self._generator), self._state, state)
        self.lane = session.lane_number()
        with session.lock:
            self._outcome = [
                (session.spec(tensor), slot, *self._change(tensor, slot, found))
                for (tensor, slot), found in zip(made, contents, strict=True)
            ]
            given.tensors = []
            session.link(self._link_writes, info)

    def _link_writes(self) -> None:
        """What the call did to memory, and the event itself. The lock is held."""
        session = self._session
        event, rows = session.next_event(), []
        for spec, slot, change, place, found in self._outcome:
            if found < 0:
                found = session.resolved(found)
            if place is not None:
                if change == _WRITTEN:
                    write(place, found, event)
                elif change == _SHOWN:
                    if found:
                        place[0].remember(place[1], found)
                elif change == _ALLOCATED:
                    allocate(place, found, event)
                else:
                    place[0].record_write(place[1], place[2], place[3], True, event)
            if change in (_ALLOCATED, _GROWN):
                rows.append((NO_VALUE, spec, slot, 0))
            else:
                flags = UNHASHED if not found else WEAK if session.is_weak(spec, found) else 0
                rows.append((found, spec, slot, flags))
        for n, now in self._suspects:
            place, (version, writing), before = self.places[n], self._before[n], self.reads[n]
            now = session.resolved(now)
            assert place is not None
            idle = not writing and not place[0].writing and place[0].version == version
            if idle and now not in (NO_VALUE, before[0]):
                write(place, now, event)
                rows.append((now, before[1], ~n, HIDDEN))
        self._stop_writing()
        session.append(self, rows, self._draw)

    def _known(self, tensor: torch.Tensor) -> int | None:
        """What is known of an output without a look at it; None if it must be hashed."""
        info = self.info
        if info.kind == _ALLOC and (not info.resizes or self._has_grown(tensor)):
            return NO_VALUE
        if info.kind == _VIEW and self._shows_same(tensor):
            return self._found[0]
        return None

    def _has_grown(self, tensor: torch.Tensor) -> bool:
        """Whether a resize made bytes that nobody has written."""
        before = self.places[0] if self.places else None
        return before is None or tensor.nbytes > before[3] - before[2]

    def _shows_same(self, tensor: torch.Tensor) -> bool:
        """Whether a view is the contiguous bytes that the call read."""
        if not self._found or tensor.layout is not torch.strided or tensor.nbytes < _SAME_MEMORY:
            return False
        source = self._given.tensors[0]
        return (
            self._found[0] != NO_VALUE
            and tensor.is_contiguous()
            and source.is_contiguous()
            and tensor.nbytes == source.nbytes
            and tensor.dtype == source.dtype
            and tensor.layout == source.layout
            and tensor.data_ptr() == source.data_ptr()
        )

    def _suspects_among(self, tensors: list[torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
        """Read-only arguments that the call may have changed all the same, by number."""
        info = self.info
        num_calls = self._session.num_calls
        is_new = not info.trusted
        if not is_new:
            calls = num_calls.get(info.name, 0)
            if calls < _FIRST_CALLS:
                num_calls[info.name] = calls + 1
                is_new = True
        marks = self._given.marks
        pairs = zip(self.places, self._marks, strict=True)
        written = {id(place[0]) for place, mark in pairs if mark and place is not None}
        found = []
        for n, tensor, mark in zip(self.numbers, tensors, marks, strict=True):
            place = self.places[n]
            if mark or self._found[n] == NO_VALUE or place is None or id(place[0]) in written:
                continue
            if is_new or place[3] - place[2] <= _ALWAYS_CHECKED:
                found.append((n, tensor))
        return found

    def _change(self, tensor: torch.Tensor, slot: int, found: int) -> tuple[int, Place | None, int]:
        """What the call did to the memory of an output or a written argument, where, and what is there now."""
        info, memory = self.info, self._session.memory
        if info.resizes:
            return self._resized(tensor, found)
        place = memory.place(tensor, made=slot >= 0 and info.kind != _VIEW)
        if slot in info.scratch_outputs:
            return _ALLOCATED, place, NO_VALUE
        if info.kind == _ALLOC:
            garbage = place is not None and place[3] - place[2] <= _MAX_GARBAGE
            return _ALLOCATED, place, self._value(tensor) if garbage else NO_VALUE
        if place is not None and (
            info.kind == _VIEW or (slot >= 0 and info.kind == _REGION and self._was_given(place))
        ):
            return _SHOWN, place, found
        return _WRITTEN, place, found

    def _resized(self, tensor: torch.Tensor, found: int) -> tuple[int, Place | None, int]:
        """A resize keeps the bytes that there were; only those behind them are new."""
        memory = self._session.memory
        memory.resized(tensor)
        before = next((place for place in self.places if place is not None), None)
        after = memory.place(tensor)
        if after is None:
            return _WRITTEN, None, found
        if before is None or before[0] is not after[0] or after[3] > before[3]:
            lo = before[3] if before is not None and before[0] is after[0] else after[2]
            return _GROWN, (after[0], (lo, after[3], tensor.dtype), lo, after[3], True), found
        self.kind = _VIEW
        return _SHOWN, after, found

    def _was_given(self, place: Place) -> bool:
        """Whether a compiled graph handed out memory that it was given (what it saves for backward)."""
        return any(given is not None and given[0] is place[0] for given in self.places)

    def _kind_of_copy(self, changed: list[int], outputs: list[torch.Tensor]) -> int:
        """A copy to another dtype, or one that broadcasts, computes something."""
        given = self._given
        sources = [t for t, mark in zip(given.tensors, given.marks, strict=True) if mark != OVERWRITTEN]
        results = [given.tensors[k] for k in changed] or outputs
        same = len(sources) == len(results) and all(
            a.dtype == b.dtype and a.shape == b.shape for a, b in zip(sources, results, strict=True)
        )
        return _COPY if same else _OP


def _collect(result: Any, into: list[torch.Tensor]) -> None:
    if isinstance(result, torch.Tensor):
        into.append(result)
    elif isinstance(result, (tuple, list)):
        for item in result:
            _collect(item, into)
