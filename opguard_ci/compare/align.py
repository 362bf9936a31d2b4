"""Lays the operators of two runs of a step side by side. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from ..trace.model import Event
from .values import Key, base_name, full_key, written

_MAX_CELLS = 250_000
"""Longest stretches that are laid side by side in every way: the product of their lengths."""
_MAX_EDITS = 600


@dataclass(slots=True)
class Alignment:
    """Pairs of events that stand at the same place, and the blocks between them that only one side has."""

    reference: list[Event]
    candidate: list[Event]
    pairs: list[tuple[int, int]] = field(default_factory=list)  # positions in the two lists, both rising
    _counterparts: dict[int, Event] = field(init=False)
    _counterparts_of_reference: dict[int, Event] = field(init=False)

    def __post_init__(self) -> None:
        self._counterparts = {self.candidate[b].index: self.reference[a] for a, b in self.pairs}
        self._counterparts_of_reference = {self.reference[a].index: self.candidate[b] for a, b in self.pairs}

    def counterpart(self, event: Event) -> Event | None:
        """The reference's event at the place of a candidate's event."""
        return self._counterparts.get(event.index)

    def counterpart_of_reference(self, event: Event) -> Event | None:
        """The candidate's event at the place of a reference's event."""
        return self._counterparts_of_reference.get(event.index)

    def blocks(self, event: Event) -> tuple[list[Event], list[Event]]:
        """(only in the reference, only in the candidate) around a candidate's event that has no counterpart."""
        position = bisect_left(self.candidate, event.index, key=lambda mine: mine.index)
        if event.index in self._counterparts or position == len(self.candidate):
            return [], []
        following = bisect_left(self.pairs, position, key=lambda pair: pair[1])
        low = self.pairs[following - 1] if following else (-1, -1)
        high = self.pairs[following] if following < len(self.pairs) else (len(self.reference), len(self.candidate))
        return self.reference[low[0] + 1 : high[0]], self.candidate[low[1] + 1 : high[1]]


def place(event: Event) -> Key:
    """What makes two events alike but for their values."""
    return (base_name(event.op), event.args, tuple(write.spec for write in written(event)), event.phase)


def align(reference: list[Event], candidate: list[Event]) -> Alignment:
    """Pair the operators of two lists: first those that did the same, then those at the same place between them."""
    left = [event for event in reference if event.kind in ("op", "copy")]
    right = [event for event in candidate if event.kind in ("op", "copy")]
    anchors = _anchors([full_key(event) for event in left], [full_key(event) for event in right])
    places = ([place(event) for event in left], [place(event) for event in right])
    pairs: list[tuple[int, int]] = []
    low = (-1, -1)
    for high in [*anchors, (len(left), len(right))]:
        pairs += _gap(places[0], places[1], (low[0] + 1, high[0]), (low[1] + 1, high[1]))
        if high[0] < len(left):
            pairs.append(high)
        low = high
    return Alignment(left, right, pairs)


def _anchors(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs of what occurs equally often on both sides, in rising order on both (a longest rising subsequence)."""
    places_left, places_right = _places(left), _places(right)
    found = sorted(
        pair
        for key, mine in places_left.items()
        if len(mine) == len(places_right.get(key, ()))
        for pair in zip(mine, places_right[key], strict=True)
    )
    return [found[n] for n in _rising([pair[1] for pair in found])]


def _places(keys: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        found.setdefault(key, []).append(position)
    return found


def _rising(numbers: list[int]) -> list[int]:
    """Positions of a longest strictly rising subsequence."""
    tails: list[int] = []
    tail_positions: list[int] = []
    previous: list[int] = []
    for position, number in enumerate(numbers):
        slot = bisect_left(tails, number)
        previous.append(tail_positions[slot - 1] if slot else -1)
        if slot == len(tails):
            tails.append(number)
            tail_positions.append(position)
        else:
            tails[slot], tail_positions[slot] = number, position
    chain = []
    position = tail_positions[-1] if tail_positions else -1
    while position >= 0:
        chain.append(position)
        position = previous[position]
    return chain[::-1]


def _gap(
    left: Sequence[Hashable], right: Sequence[Hashable], rows: tuple[int, int], columns: tuple[int, int]
) -> list[tuple[int, int]]:
    """Pairs of equal keys in a stretch of both lists."""
    (top, bottom), (first, last) = rows, columns
    pairs: list[tuple[int, int]] = []
    while top < bottom and first < last and left[top] == right[first]:
        pairs.append((top, first))
        top, first = top + 1, first + 1
    tail: list[tuple[int, int]] = []
    while top < bottom and first < last and left[bottom - 1] == right[last - 1]:
        bottom, last = bottom - 1, last - 1
        tail.append((bottom, last))
    mine, other = left[top:bottom], right[first:last]
    if not mine or not other:
        return [*pairs, *reversed(tail)]
    if len(mine) * len(other) <= _MAX_CELLS:
        blocks = SequenceMatcher(None, mine, other, autojunk=False).get_matching_blocks()
        inner = [(top + block.a + n, first + block.b + n) for block in blocks for n in range(block.size)]
    else:
        inner = [(top + a, first + b) for a, b in shortest_edit(mine, other) or ()]
    if not inner:  # too long and too different: only what occurs equally often, and what stands beside it
        inner = _between(left, right, [(top + a, first + b) for a, b in _anchors(mine, other)], (top, first))
    return [*pairs, *inner, *reversed(tail)]


def shortest_edit(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """Pairs of equal keys by a shortest sequence of insertions and removals; None if that is longer than
    ``_MAX_EDITS``.

    Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), the greedy form.
    """
    reach = {1: 0}
    history: list[dict[int, int]] = []
    for distance in range(min(len(left) + len(right), _MAX_EDITS) + 1):
        history.append(reach.copy())
        for diagonal in range(-distance, distance + 1, 2):
            down = diagonal == -distance or (diagonal != distance and reach[diagonal - 1] < reach[diagonal + 1])
            row = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            while row < len(left) and row - diagonal < len(right) and left[row] == right[row - diagonal]:
                row += 1
            reach[diagonal] = row
            if row >= len(left) and row - diagonal >= len(right):
                return _trail(history, len(left), len(right))
    return None


def _trail(history: list[dict[int, int]], row: int, column: int) -> list[tuple[int, int]]:
    """The equal keys on the way back from the end."""
    pairs = []
    for distance in range(len(history) - 1, -1, -1):
        reach, diagonal = history[distance], row - column
        down = diagonal == -distance or (diagonal != distance and reach[diagonal - 1] < reach[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        start = (reach[before], reach[before] - before) if distance else (0, 0)
        while row > start[0] and column > start[1]:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        row, column = start
    return pairs[::-1]


def _between(
    left: Sequence[Hashable], right: Sequence[Hashable], anchors: list[tuple[int, int]], start: tuple[int, int]
) -> list[tuple[int, int]]:
    """Anchors, with the equal keys that follow each of them up to the next."""
    pairs: list[tuple[int, int]] = []
    (row, column) = start
    for anchor in anchors:
        if anchor[0] - row and anchor[1] - column and (anchor[0] - row) * (anchor[1] - column) <= _MAX_CELLS:
            pairs += _gap(left, right, (row, anchor[0]), (column, anchor[1]))
        pairs.append(anchor)
        row, column = anchor[0] + 1, anchor[1] + 1
    return pairs


def structure(reference: list[Event], candidate: list[Event], aligned: Alignment) -> dict[str, int]:
    """How many operators one side has more than the other, and how many stand elsewhere."""
    left = [place(event)[:3] for event in reference if event.kind == "op"]
    right = [place(event)[:3] for event in candidate if event.kind == "op"]
    removed = Counter(left) - Counter(right)
    inserted = Counter(right) - Counter(left)
    common = len(left) - sum(removed.values())
    in_place = sum(1 for a, _ in aligned.pairs if aligned.reference[a].kind == "op")
    return {
        "inserted": sum(inserted.values()),
        "removed": sum(removed.values()),
        "moved": max(0, common - in_place),
    }
