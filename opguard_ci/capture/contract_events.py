"""The events of contract values: one for each, when a step ends or an optimizer has stepped."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import torch

from ..trace.model import KINDS, NO_VALUE, NULL, OUTSIDE
from .ahead import was_looked_at
from .contract import Entry, unwrapped
from .fingerprint import cpu
from .fingerprint.quiet import Unhashable, quiet
from .fingerprint.tensors import value, values
from .finite import is_finite
from .links import Place, read

if TYPE_CHECKING:
    from .promises import Promises
    from .session import Session

STATE_SECTIONS: Final = frozenset(("parameter", "buffer", "optimizer"))
_CONTRACT: Final = KINDS.index("contract")


class ContractEvents:
    """Appends them to the session's rows. The session's lock guards it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.nonfinite: list[str] | None = None
        """Values with NaN or infinities, if they are looked for."""
        self.promises: Promises | None = None
        """What the recipe says of its contract."""
        self.state: list[torch.Tensor] = []
        """Of the contract just recorded, until its step ends, where only a window of steps is looked at."""

    def record(self, entries: Iterable[Entry]) -> None:
        """Append one event per value, as it is now."""
        session = self._session
        if session.over:  # and perhaps a fork of another thread that holds the lock
            return
        with quiet(), session.lock:
            if not session.over:
                self._record(list(entries))

    def _record(self, entries: list[Entry]) -> None:
        session = self._session
        session.settle()
        plain = [unwrapped(entry.held) for entry in entries]
        entries = [e if mine is e.held else e.of(mine) for e, mine in zip(entries, plain, strict=True)]
        if session.collectives is not None and session.begun:
            session.collectives.used(plain)
        core = None if self.promises is not None or session.keeper is not None else session.core
        lane, phase = session.lane_number(), session.phase()
        found = iter(self.contents(entries)) if core is None or session.devices.used else None
        for entry in entries:
            held = entry.held
            if self.nonfinite is not None and not is_finite(held):
                self.nonfinite.append(f"step {session.step}: {entry.name}")
            is_state = entry.section in STATE_SECTIONS
            if is_state and session.window is not None and isinstance(held, torch.Tensor):
                self.state.append(held)
            content = next(found) if found is not None and isinstance(held, torch.Tensor) else 0
            if core is not None and core.append_contract(lane, phase, entry, content):
                continue
            place, flags = None, 0
            if isinstance(held, torch.Tensor):
                spec, content = session.looks.spec(held), content if found is not None else self._content(entry, held)
                if content:
                    place = session.looks.memory.place(held)
            else:
                spec, content, flags = session.strings.spec(type(held).__name__), cpu.of_text(repr(held)), OUTSIDE
            row = self.row(lane, phase, entry)
            if place is not None and session.assumes and session.devices.used:
                was_looked_at(place)
            numbers = None if self.promises is None else self.promises.of(entry, session.strings.spec.strings[spec])
            session.link(functools.partial(self.append, row, (content, spec, flags), place, is_state, numbers))
            if session.keeper is not None:
                session.keeper.saw_entry(held)

    def contents(self, entries: Iterable[Entry]) -> list[int]:
        """The values of the tensors, those of a device together; 0, and a note, for one that has none."""
        tensors = [(entry, entry.held) for entry in entries if isinstance(entry.held, torch.Tensor)]
        with suppress(Unhashable, RuntimeError, MemoryError):  # one of them, or no memory: see below which
            return values([held for _, held in tensors], self._session.devices)
        return [self._content(entry, held) for entry, held in tensors]

    def _content(self, entry: Entry, held: torch.Tensor) -> int:
        try:
            return value(held, self._session.devices)
        except Unhashable as reason:
            self._session.unhashed(f"contract {entry.name}", reason)
            return NO_VALUE

    def row(self, lane: int, phase: int, entry: Entry) -> tuple[int, ...]:
        """The columns of a value's event, but for what it reads."""
        strings = self._session.strings
        key = NULL if entry.key is None else strings.key(entry.key)
        op, name = strings.op(entry.section), strings.args(entry.name)
        return (lane, phase, _CONTRACT, op, name, NULL, NULL, key, 0, NULL, 0, 0)

    def append(
        self,
        row: tuple[int, ...],
        seen: tuple[int, int, int],
        place: Place | None,
        is_state: bool,
        numbers: bytes | None = None,
    ) -> None:
        """Append the event of a value. ``seen``: the value, spec and flags."""
        session = self._session
        found, spec, flags = session.resolved(seen[0]), *seen[1:]
        if numbers is not None and found:
            assert self.promises is not None
            self.promises.keep((found, session.strings.spec.strings[spec]), numbers)
        writers: tuple[int, ...] = ()
        if place is not None:
            place[0].state = place[0].state or is_state
            writers, flags = read(place, found)
        session.rows.append(row, [(found, spec, flags, writers)], [])
