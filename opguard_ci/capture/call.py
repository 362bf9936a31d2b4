"""One operator call: what it reads before it runs, what it wrote after."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ..trace.model import HIDDEN, HOST, KINDS, NO_VALUE, NULL, RANDOM, RECOMPUTED, STRIDED, UNHASHED, UNREAD, WEAK
from .fingerprint.tensors import Unhashable, value
from .links import Place, allocate, read, write
from .schema import OpInfo
from .text import OVERWRITTEN, Arguments

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
Written = tuple[torch.Tensor, WriteRow]


class Call:
    """One operator call, between its reads and its writes."""

    __slots__ = (
        "_before",
        "_generator",
        "_given",
        "_session",
        "_state",
        "flags",
        "info",
        "kind",
        "module",
        "numbers",
        "phase",
        "places",
        "reads",
        "stack",
        "writing",
    )

    def __init__(self, session: Session, info: OpInfo, given: Arguments) -> None:
        self._session = session
        self.info = info
        self._given = given
        self._generator: torch.Generator | None = None
        self.reads: list[ReadRow] = []
        self.places: list[Place | None] = []
        self.writing: list[Place] = []
        self.kind = info.kind
        self.numbers: Sequence[int] = range(len(given.tensors))
        """Of the tensors that are still held, among all tensor arguments."""

    @property
    def text(self) -> str:
        """The argument text."""
        return self._given.text

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
        values = [
            NO_VALUE if mark == OVERWRITTEN else self._value(tensor)
            for tensor, mark in zip(tensors, marks, strict=True)
        ]
        reads, places, memory, spec = self.reads, self.places, session.memory, session.spec
        with session.lock:
            for tensor, mark, found in zip(tensors, marks, values, strict=True):
                place = memory.place(tensor)
                places.append(place)
                if mark == OVERWRITTEN:
                    reads.append((NO_VALUE, spec(tensor), UNREAD, ()))
                elif place is None or not found:
                    reads.append((found, spec(tensor), STRIDED if place is None else 0, ()))
                else:
                    writers, flags = read(place, found)
                    if len(place[1]) > 3:
                        flags |= STRIDED
                    reads.append((found, spec(tensor), flags, writers))
                if mark and place is not None:
                    place[0].writing += 1
                    self.writing.append(place)
            self._before = [(0, 0) if p is None else (p[0].version, p[0].writing) for p in places]

    def _value(self, tensor: torch.Tensor) -> int:
        try:
            return value(tensor)
        except Unhashable as reason:
            self._session.unhashed(self.info.name, reason)
            return NO_VALUE

    def _locate(self, phase: int) -> None:
        session = self._session
        module = session.modules.current()
        if phase == _BACKWARD and module is None:
            place = session.origins.of_current_node()
            if place is not None:
                self.module, self.stack = place
                return
        self.module = NULL if module is None else session.strings.module(module)
        self.stack = session.stacks.current(sys._getframe(3))

    def release_inputs(self) -> None:
        """Let go of inputs that the call does not write: it may free them while it runs, as in a bare run."""
        given = self._given
        self.numbers = [n for n, mark in enumerate(given.marks) if mark]
        given.tensors = [given.tensors[n] for n in self.numbers]
        given.marks = [given.marks[n] for n in self.numbers]

    def abandon(self) -> None:
        """The call raised: nothing is recorded of it, and its arguments are no longer being written."""
        with self._session.lock:
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
        writes: list[Written] = [
            (tensor, self._write(tensor, slot)) for slot, tensor in enumerate(outputs) if id(tensor) not in in_place
        ]
        writes += [(tensors[k], self._write(tensors[k], ~numbers[k])) for k in changed]
        if info.kind == _COPY:
            self.kind = self._kind_of_copy(changed, outputs)
        suspects = self._changed_reads() if info.kind == _OP and tensors else []
        draw = (NULL, 0, 0)
        if self._generator is not None:
            state = session.generator_state(self._generator)
            if info.random or state != self._state:
                draw = (session.generator_number(self._generator), self._state, state)
        with session.lock:
            event = session.next_event()
            rows = [row for _, row in writes]
            for tensor, row in writes:
                self._link(tensor, row, event)
            for n, now in suspects:
                place, (version, writing) = self.places[n], self._before[n]
                assert place is not None
                if place[0].version == version and not writing and not place[0].writing:
                    row = (now, self.reads[n][1], ~n, HIDDEN)
                    write(place, now, event)
                    rows.append(row)
            for place in self.writing:
                place[0].writing -= 1
            self.writing = []
            session.append(self, rows, draw)

    def _write(self, tensor: torch.Tensor, slot: int) -> WriteRow:
        session, info = self._session, self.info
        spec = session.spec(tensor)
        kind = info.kind
        if kind == _ALLOC and (not info.resizes or self._has_grown(tensor)):
            return NO_VALUE, spec, slot, 0
        if kind == _VIEW and self._shows_same(tensor):
            found = self.reads[0][0]
        else:
            found = self._value(tensor)
            if not found:
                return NO_VALUE, spec, slot, UNHASHED
        return found, spec, slot, WEAK if session.is_weak(spec, found) else 0

    def _has_grown(self, tensor: torch.Tensor) -> bool:
        """Whether a resize made bytes that nobody has written."""
        before = self.places[0] if self.places else None
        return before is None or tensor.nbytes > before[3] - before[2]

    def _shows_same(self, tensor: torch.Tensor) -> bool:
        """Whether a view is the contiguous bytes that the call read."""
        if not self.reads or tensor.layout is not torch.strided or tensor.nbytes < _SAME_MEMORY:
            return False
        source = self._given.tensors[0]
        return (
            self.reads[0][0] != NO_VALUE
            and tensor.is_contiguous()
            and source.is_contiguous()
            and tensor.nbytes == source.nbytes
            and tensor.dtype == source.dtype
            and tensor.layout == source.layout
            and tensor.data_ptr() == source.data_ptr()
        )

    def _changed_reads(self) -> list[tuple[int, int]]:
        """Read-only arguments that have other bytes now, by number, and what these are."""
        info, given = self.info, self._given
        num_calls = self._session.num_calls
        is_new = not info.trusted
        if not is_new:
            calls = num_calls.get(info.name, 0)
            if calls < _FIRST_CALLS:
                num_calls[info.name] = calls + 1
                is_new = True
        written = {id(place[0]) for place in self.writing}
        found = []
        for n, tensor, mark in zip(self.numbers, given.tensors, given.marks, strict=True):
            place, before = self.places[n], self.reads[n][0]
            if mark or before == NO_VALUE or place is None or id(place[0]) in written:
                continue
            if is_new or place[3] - place[2] <= _ALWAYS_CHECKED:
                now = self._value(tensor)
                if now != before and now:
                    found.append((n, now))
        return found

    def _link(self, tensor: torch.Tensor, row: WriteRow, event: int) -> None:
        """Note in memory what the call did to an output or a written argument."""
        info, memory = self.info, self._session.memory
        found, _, slot, _ = row
        if info.resizes:
            self._link_resized(tensor, found, event)
            return
        place = memory.place(tensor, made=slot >= 0 and info.kind != _VIEW)
        if place is None:
            return
        if slot >= 0 and (info.kind == _VIEW or (info.kind == _REGION and self._was_given(place))):
            place[0].remember(place[1], found)
        elif info.kind == _ALLOC:
            allocate(place, self._value(tensor) if place[3] - place[2] <= _MAX_GARBAGE else NO_VALUE, event)
        else:
            write(place, found, event)

    def _link_resized(self, tensor: torch.Tensor, found: int, event: int) -> None:
        """A resize keeps the bytes that there were; only those behind them are new."""
        memory = self._session.memory
        memory.resized(tensor)
        before = next((place for place in self.places if place is not None), None)
        after = memory.place(tensor)
        if after is None:
            return
        if before is None or before[0] is not after[0] or after[3] > before[3]:
            lo = before[3] if before is not None and before[0] is after[0] else after[2]
            after[0].record_write((lo, after[3], tensor.dtype), lo, after[3], True, event)
        else:
            self.kind = _VIEW
            after[0].remember(after[1], found)

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
