"""What a recipe says of its contract, while the run goes: whether each pattern fits anything, and the numbers of values
that a tolerance names, since fingerprints cannot tell how far two values lie apart.
"""

from __future__ import annotations

import fnmatch
import struct
from collections.abc import Iterable, Mapping
from typing import Final

import torch

from ..errors import UntestableError
from ..tolerance import Tolerance, matching
from ..trace.known import MAX_NUMBERS, Value, number_format
from .contract import Entry
from .fingerprint.quiet import quiet

_SHOWN: Final = 8


class Promises:
    """Takes the numbers of what the patterns of a tolerance fit; each value is kept once."""

    def __init__(self, tolerance: Mapping[str, Tolerance], unstable: Iterable[str]) -> None:
        self._tolerance = tolerance
        self._unmatched = dict.fromkeys(tolerance)
        self._unstable = tuple(unstable)
        self._names: dict[str, None] = {}
        self._kept: set[Value] = set()
        self._pending: list[tuple[Value, bytes]] = []
        self._left = MAX_NUMBERS

    def of(self, entry: Entry, spec: str) -> bytes | None:
        """The numbers of a contract value; None where no tolerance names it, or it has no floating-point numbers.

        Raises ``UntestableError`` if the run has more of them than a trace may hold.
        """
        self._names[entry.name] = None
        found = matching(self._tolerance, entry.name)
        if found is None:
            return None
        self._unmatched.pop(found[0], None)
        if number_format(spec) is None:
            return None
        numbers = _numbers(entry.held)
        if numbers is None:
            return None
        self._left -= len(numbers)
        if self._left < 0:
            raise UntestableError(
                "tolerance-too-large",
                f"The values that tolerance names, {entry.name!r} among them, have more than {MAX_NUMBERS >> 20} MB of "
                "numbers: name fewer or smaller values, or make fewer steps.",
            )
        return numbers

    def keep(self, value: Value, numbers: bytes) -> None:
        """The value that these numbers are of is known."""
        if value in self._kept:
            self._left += len(numbers)
        else:
            self._kept.add(value)
            self._pending.append((value, numbers))

    def take(self) -> list[tuple[Value, bytes]]:
        """What was kept since the last time."""
        taken, self._pending = self._pending, []
        return taken

    def require_all_matched(self, operators: Iterable[str] | None) -> None:
        """Raise ``UntestableError`` for patterns that fit nothing of the whole run: no name of the contract and, of
        ``unstable``, no operator (None: not known).
        """
        if self._unmatched:
            raise UntestableError(
                "tolerance-unmatched",
                f"tolerance names {_listed(map(repr, self._unmatched))}, but the contract has no such value: it has "
                f"{_listed(self._names)}.",
            )
        names = None if operators is None else [*self._names, *operators]
        unfit = [p for p in self._unstable if names is not None and not any(fnmatch.fnmatchcase(n, p) for n in names)]
        if unfit:
            raise UntestableError(
                "unstable-unmatched",
                f"unstable names {_listed(map(repr, unfit))}, which is no value of the contract and no operator of the "
                f"run: the contract has {_listed(self._names)}.",
            )


def _numbers(held: object) -> bytes | None:
    if isinstance(held, torch.Tensor):
        if type(held) not in (torch.Tensor, torch.nn.Parameter) or held.layout is not torch.strided:
            return None
        with quiet():
            plain = held.detach().resolve_conj().resolve_neg().cpu().contiguous()
            return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert isinstance(held, (float, complex))
    parts = (held.real, held.imag) if isinstance(held, complex) else (held,)
    return struct.pack(f"={len(parts)}d", *parts)


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
