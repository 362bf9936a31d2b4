"""Contract values of objects that are let go of before their step ends.

The locals of a training function are gone when it has returned, and that may be before the last step is over. Nothing
of the target's is kept alive for that: where its tensors lie is noted while they are there, and what recorded
operators last left there is known by the links.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from ..trace.model import NO_VALUE, OUTSIDE
from .contract import Entry, unwrapped
from .fingerprint import cpu
from .fingerprint.quiet import quiet
from .links import Place

if TYPE_CHECKING:
    from .session import Session

_Value = tuple[Entry, int, Place | None, int]
"""An entry that holds nothing, its spec, place, and value (0: what the links say)."""
_NOTHING: Final = ""


class LastSeen:
    """What the contract was when an optimizer last stepped."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._values: list[_Value] = []
        self._tensors: list[weakref.ref[torch.Tensor]] = []

    def take(self, entries: Iterable[Entry]) -> None:
        """Note where the contract's values lie."""
        session = self._session
        if session.over:
            return
        with quiet(), session.lock:
            self._values, self._tensors = [], []
            core = session.core if session.sees_operators else None
            entries = list(entries)
            found: Iterator[int] | None = None
            if not session.sees_operators:
                found = iter(session.contract.contents([entry.of(unwrapped(entry.held)) for entry in entries]))
            for entry in entries:
                bare = entry.of(_NOTHING)
                if not isinstance(entry.held, torch.Tensor):
                    spec = session.strings.spec(type(entry.held).__name__)
                    self._values.append((bare, spec, None, cpu.of_text(repr(entry.held))))
                    continue
                lies = None if core is None else core.lies(entry.held)
                if lies is not None:
                    self._values.append((bare, *lies, NO_VALUE))
                    self._tensors.append(weakref.ref(entry.held))
                    continue
                held: Any = unwrapped(entry.held)
                value = NO_VALUE if found is None else next(found)
                self._values.append((bare, session.looks.spec(held), session.looks.memory.place(held), value))
                self._tensors.append(weakref.ref(entry.held))
                if value < 0:  # of a device, and on its way
                    session.link(functools.partial(self._resolve, self._values, len(self._values) - 1))

    def _resolve(self, values: list[_Value], number: int) -> None:
        entry, spec, place, value = values[number]
        values[number] = (entry, spec, place, self._session.resolved(value))

    def are_needed(self) -> bool:
        """Whether any of the tensors is gone."""
        return any(tensor() is None for tensor in self._tensors)

    def record(self) -> None:
        """Append one event per value, as recorded operators left it."""
        session = self._session
        with session.lock:
            session.settle()
            lane, phase = session.lane_number(), session.phase()
            for entry, spec, place, value in self._values if not session.over else ():
                row = session.contract.row(lane, phase, entry)
                session.link(functools.partial(self._append, row, spec, place, value))

    def _append(self, row: tuple[int, ...], spec: int, place: Place | None, value: int) -> None:
        if value == NO_VALUE and place is not None:
            value = place[0].seen_as(place[1])
        if value != NO_VALUE:  # else it was written in pieces since
            seen = (value, spec, OUTSIDE if place is None else 0)
            self._session.contract.append(row, seen, place, is_state=True)
