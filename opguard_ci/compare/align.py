"""Lays the operators of two runs of a step side by side. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from ..trace.model import Event
from .values import Key, base_name, full_key, written

_MAX_GAP = 4000


@dataclass(slots=True)
class Alignment:
    """Pairs of events that stand at the same place, and the blocks between them that only one side has."""

    reference: list[Event]
    candidate: list[Event]
    pairs: list[tuple[int, int]] = field(default_factory=list)  # positions in the two lists, both rising

    def counterpart(self, event: Event) -> Event | None:
        """The reference's event at the place of a candidate's event."""
        return self._other(event, self.candidate, self.reference, 1, 0)

    def counterpart_of_reference(self, event: Event) -> Event | None:
        """The candidate's event at the place of a reference's event."""
        return self._other(event, self.reference, self.candidate, 0, 1)

    def _other(self, event: Event, mine: list[Event], other: list[Event], own: int, far: int) -> Event | None:
        for pair in self.pairs:
            if mine[pair[own]].index == event.index:
                return other[pair[far]]
        return None

    def blocks(self, event: Event) -> tuple[list[Event], list[Event]]:
        """(only in the reference, only in the candidate) around a candidate's event that has no counterpart."""
        position = next((n for n, mine in enumerate(self.candidate) if mine.index == event.index), None)
        if position is None:
            return [], []
        low = max((pair for pair in self.pairs if pair[1] < position), default=(-1, -1))
        high = min(
            (pair for pair in self.pairs if pair[1] > position), default=(len(self.reference), len(self.candidate))
        )
        if any(pair[1] == position for pair in self.pairs):
            return [], []
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
    mine, other = left[rows[0] : rows[1]], right[columns[0] : columns[1]]
    if not mine or not other:
        return []
    if len(mine) + len(other) > _MAX_GAP:  # quadratic: far too long to be one edit
        pairs = _anchors(mine, other)
    else:
        blocks = SequenceMatcher(None, mine, other, autojunk=False).get_matching_blocks()
        pairs = [(block.a + n, block.b + n) for block in blocks for n in range(block.size)]
    return [(rows[0] + a, columns[0] + b) for a, b in pairs]


def structure(reference: list[Event], candidate: list[Event]) -> dict[str, int]:
    """How many operators one side has more than the other, and how many stand elsewhere."""
    left = [place(event)[:3] for event in reference if event.kind == "op"]
    right = [place(event)[:3] for event in candidate if event.kind == "op"]
    removed = Counter(left) - Counter(right)
    inserted = Counter(right) - Counter(left)
    common = len(left) - sum(removed.values())
    aligned = align(reference, candidate)
    in_place = sum(1 for a, _ in aligned.pairs if aligned.reference[a].kind == "op")
    return {
        "inserted": sum(inserted.values()),
        "removed": sum(removed.values()),
        "moved": max(0, common - in_place),
    }
