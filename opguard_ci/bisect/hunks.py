"""The smallest set of a change's pieces that gives all of its numbers: prefix bisection, then ddmin. Pure.

The pieces are numbers from 0, in an order in which what is likely to matter comes first. A set of them is laid over the
state before the change and gives the ``same`` numbers as the whole change, ``other`` ones (those from before, or any
third ones), or cannot be tried (``unknown``). Of all pieces it is known that they give the same, of none that they give
others.

Prefixes come first: between the longest that gives other numbers and the shortest that gives the same stands a piece
that matters. It is kept, and the rest is searched again until what is kept is enough. Where no prefix in between can be
tried, the whole block is kept and thinned out by ddmin (Zeller and Hildebrandt, "Simplifying and Isolating
Failure-Inducing Input", 2002). At the end every piece is left out once, so that none is named that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

Answer = Literal["same", "other", "unknown"]
Ask = Callable[[frozenset[int]], Answer]

LIMIT: Final = 150
"""So many sets are tried at most."""
_MAX_UNKNOWN: Final = 4
"""So many prefixes that cannot be tried end the search among prefixes: a block of them is ddmin's matter."""


@dataclass(frozen=True, slots=True)
class Smallest:
    """Pieces that together give the numbers of the whole change.

    ``unproven``: those of them without which the rest cannot be tried, so that nobody knows whether they matter.
    ``is_finished``: False when the limit was reached, and more pieces might be left out.
    """

    pieces: frozenset[int]
    unproven: frozenset[int] = frozenset()
    is_finished: bool = True


def smallest(count: int, ask: Ask, *, limit: int = LIMIT) -> Smallest:
    """Find a set of ``count`` pieces that gives the same numbers and from which no single piece can be left out."""
    search = _Search(count, ask, limit)
    try:
        search.by_prefixes()
        unproven = search.thin_out()
    except _LimitReachedError:
        return Smallest(search.best, is_finished=False)
    return Smallest(search.best, unproven)


class _LimitReachedError(Exception):
    """No further set may be tried."""


class _Search:
    """``best`` is the smallest set known to give the same numbers."""

    def __init__(self, count: int, ask: Ask, limit: int) -> None:
        self.best = frozenset(range(count))
        self._ask = ask
        self._left = limit
        self._known: dict[frozenset[int], Answer] = {frozenset(): "other", self.best: "same"}

    def answer(self, pieces: frozenset[int]) -> Answer:
        if pieces not in self._known:
            if not self._left:
                raise _LimitReachedError
            self._left -= 1
            self._known[pieces] = self._ask(pieces)
        found = self._known[pieces]
        if found == "same" and len(pieces) < len(self.best):
            self.best = pieces
        return found

    def by_prefixes(self) -> None:
        kept: frozenset[int] = frozenset()
        line = sorted(self.best)
        while self.answer(kept) != "same":
            low, high = self._boundary(kept, line)
            block, line = frozenset(line[low:high]), line[:low]
            kept |= block
            if len(block) > 1:
                kept = kept - block | self._ddmin(kept - block | frozenset(line), block)

    def _boundary(self, kept: frozenset[int], line: list[int]) -> tuple[int, int]:
        """Lengths of two prefixes: with ``kept``, the first does not give the same numbers, the second does."""
        low, high, reach = 0, len(line), 1
        unknown: set[int] = set()
        while len(unknown) < _MAX_UNKNOWN:
            untried = [length for length in range(low + 1, high) if length not in unknown]
            if not untried:
                break
            is_first = not kept and not unknown and high == len(line)  # what is likely to matter stands in front
            middle = low + reach if is_first else (low + high) // 2
            length = min(untried, key=lambda each, middle=middle: abs(each - middle))  # type: ignore[misc]
            reach *= 2
            found = self.answer(kept | frozenset(line[:length]))
            if found == "same":
                high = length
            elif found == "other":
                low = length
            else:
                unknown.add(length)
        return low, high

    def thin_out(self) -> frozenset[int]:
        """Leave out what is not needed; returns the pieces of `best` of which that is not known."""
        while True:
            needed, unproven = self._without_each()
            if not unproven:
                return unproven
            if self.answer(needed) != "same" and self._ddmin(needed, unproven) == unproven:
                return unproven

    def _without_each(self) -> tuple[frozenset[int], frozenset[int]]:
        """Leave out single pieces until that changes the numbers: the pieces that are needed, and those of doubt."""
        while True:
            start = self.best
            answers = {}
            for piece in sorted(start):
                answers[piece] = self.answer(start - {piece})
                if answers[piece] == "same":
                    break
            else:
                needed = frozenset(piece for piece, found in answers.items() if found == "other")
                return needed, start - needed

    def _ddmin(self, fixed: frozenset[int], items: frozenset[int]) -> frozenset[int]:
        """Fewer of ``items`` that still give the same numbers together with ``fixed``."""
        parts = 2
        while len(items) >= 2:
            split = _split(sorted(items), parts)
            smaller = next((part for part in split if self.answer(fixed | part) == "same"), None)
            if smaller is not None:
                items, parts = smaller, 2
                continue
            smaller = next((items - part for part in split if self.answer(fixed | (items - part)) == "same"), None)
            if smaller is not None:
                items, parts = smaller, max(parts - 1, 2)
            elif parts >= len(items):
                break
            else:
                parts = min(2 * parts, len(items))
        return items


def _split(items: list[int], parts: int) -> list[frozenset[int]]:
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    return [frozenset(items[start:end]) for start, end in pairwise(bounds) if end > start]
