"""Which events of a run may be findings, so that whoever looks for them need not read the others. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from .model import HIDDEN, KINDS, OVER, StepTable

_OP: Final = KINDS.index("op")


class Flagged:
    """Finds the first operator of each name and module that read bytes changed unseen, or that changed what its schema
    calls read-only.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, int, bool, bool]] = set()

    def events(self, table: StepTable) -> list[int]:
        """The numbers of those of a step that were not found in a step before."""
        over = set(_rows(table.read_flags, OVER, table.read_offsets))
        hidden = set(_rows(table.write_flags, HIDDEN, table.write_offsets))
        found = []
        for row in sorted(over | hidden):
            key = (table.op[row], table.module[row], row in over, row in hidden)
            if table.kind[row] == _OP and key not in self._seen:
                self._seen.add(key)
                found.append(table.first + row)
        return found


def _rows(flags: list[int], flag: int, offsets: list[int]) -> Iterator[int]:
    """The rows of the entries that have a flag."""
    return (bisect_right(offsets, place) - 1 for place, mine in enumerate(flags) if mine & flag)
