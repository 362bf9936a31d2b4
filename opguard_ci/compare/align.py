"""Lays the operators of two runs of a step side by side. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from ..trace.model import Event
from .hashes import Words
from .side import Rows, StepView
from .values import Key, base_name, written

Places = npt.NDArray[np.int64]

_MAX_CELLS = 250_000
"""Longest stretches that are laid side by side in every way: the product of their lengths."""
_MAX_EDITS = 600


@dataclass(slots=True)
class Alignment:
    """Pairs of events that stand at the same place, and the blocks between them that only one side has."""

    reference: Rows
    candidate: Rows
    places: tuple[Places, Places]
    """Of the pairs in the two lists, both rising."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The places of each pair."""
        return list(zip(*(side.tolist() for side in self.places), strict=True))

    def counterpart(self, event: Event) -> Event | None:
        """The reference's event at the place of a candidate's event."""
        number = self._pair(1, self.candidate.place(event))
        return None if number is None else self.reference[self.places[0][number]]

    def counterpart_of_reference(self, event: Event) -> Event | None:
        """The candidate's event at the place of a reference's event."""
        number = self._pair(0, self.reference.place(event))
        return None if number is None else self.candidate[self.places[1][number]]

    def _pair(self, side: int, place: int | None) -> int | None:
        if place is None:
            return None
        number = int(np.searchsorted(self.places[side], place))
        return number if number < len(self.places[side]) and self.places[side][number] == place else None

    def blocks(self, event: Event) -> tuple[list[Event], list[Event]]:
        """(only in the reference, only in the candidate) around a candidate's event that has no counterpart."""
        place = self.candidate.place(event)
        if place is None or self._pair(1, place) is not None:
            return [], []
        left, right = self.places
        following = int(np.searchsorted(right, place))
        low = (left[following - 1], right[following - 1]) if following else (-1, -1)
        at_end = following == len(right)
        high = (len(self.reference), len(self.candidate)) if at_end else (left[following], right[following])
        return self.reference[low[0] + 1 : high[0]], self.candidate[low[1] + 1 : high[1]]


def place(event: Event) -> Key:
    """What makes two events alike but for their values."""
    return (base_name(event.op), event.args, tuple(write.spec for write in written(event)), event.phase)


def align(reference: StepView, candidate: StepView) -> Alignment:
    """Pair the operators of two steps: first those that did the same, then those at the same place between them."""
    sides = [Rows(view, np.flatnonzero(view.is_op | view.is_copy)) for view in (reference, candidate)]
    left, right = sides
    anchors = _anchors(*(side.view.hashes.full[side.rows] for side in sides))
    # The stretches between two anchors, as far as both sides have something there.
    lows = [np.concatenate([[0], places + 1]) for places in anchors]
    highs = [np.append(places, len(side)) for places, side in zip(anchors, sides, strict=True)]
    gaps = np.flatnonzero((lows[0] < highs[0]) & (lows[1] < highs[1]))
    more: list[tuple[int, int]] = []
    if len(gaps):
        keys = [side.view.hashes.place[side.rows].tolist() for side in sides]
        stretches = (np.stack([low[gaps], high[gaps]], axis=1).tolist() for low, high in zip(lows, highs, strict=True))
        for rows, columns in zip(*stretches, strict=True):
            more += _gap(keys[0], keys[1], rows, columns)
    found = np.concatenate([np.stack(anchors, axis=1), np.array(more, np.int64).reshape(-1, 2)])
    found = found[np.argsort(found[:, 0])]
    return Alignment(left, right, (found[:, 0], found[:, 1]))


def _anchors(left: Sequence[int] | Words, right: Sequence[int] | Words) -> tuple[Places, Places]:
    """Pairs of what occurs equally often on both sides, in rising order on both (a longest rising subsequence)."""
    keys, numbers = np.unique(np.concatenate([left, right]), return_inverse=True)
    mine, others = numbers[: len(left)], numbers[len(left) :]
    counts = [np.bincount(side, minlength=len(keys)) for side in (mine, others)]
    is_kept = (counts[0] == counts[1]) & (counts[0] > 0)
    # Sorted by key and place, the n-th of a key on one side stands beside the n-th on the other.
    orders = [np.argsort(side, kind="stable") for side in (mine, others)]
    rows, columns = (order[is_kept[side[order]]] for order, side in zip(orders, (mine, others), strict=True))
    order = np.argsort(rows)
    rows, columns = rows[order], columns[order]
    kept = _longest_rising(columns)
    return rows[kept], columns[kept]


def _longest_rising(numbers: Places) -> Places:
    """Positions of a longest strictly rising subsequence of distinct numbers."""
    positions = np.arange(len(numbers))
    # What no number before exceeds, and none behind falls short of, is in it; only between such numbers is a choice.
    above = np.maximum.accumulate(numbers) == numbers
    fixed = positions[above & (np.minimum.accumulate(numbers[::-1])[::-1] == numbers)]
    lows, highs = np.concatenate([[0], fixed + 1]), np.append(fixed, len(numbers))
    chosen = [fixed]
    for low, high in zip(lows[lows < highs].tolist(), highs[lows < highs].tolist(), strict=True):
        chosen.append(low + np.array(_rising(numbers[low:high].tolist()), np.int64))
    return np.sort(np.concatenate(chosen))


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
    left: Sequence[int], right: Sequence[int], rows: tuple[int, int], columns: tuple[int, int]
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
        if not inner:  # too different: only what occurs equally often, and what stands beside it
            places = (side.tolist() for side in _anchors(mine, other))
            inner = _between(left, right, [(top + a, first + b) for a, b in zip(*places, strict=True)], (top, first))
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
    left: Sequence[int], right: Sequence[int], anchors: list[tuple[int, int]], start: tuple[int, int]
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


def structure(aligned: Alignment) -> dict[str, int]:
    """How many operators one side has more than the other, how many have other arguments or shapes, and how many stand
    elsewhere. ``changed`` is only there if any are.
    """
    num_left = int(aligned.reference.view.is_op.sum())
    inserted, removed = _surplus(aligned, "base")
    other_forms = _surplus(aligned, "form")[1]
    changed = other_forms - removed  # exchanged for another form of the same operator
    in_place = int(aligned.reference.view.is_op[aligned.reference.rows[aligned.places[0]]].sum())
    found = {"inserted": inserted, "removed": removed, "moved": max(0, num_left - other_forms - in_place)}
    return {**found, "changed": changed} if changed else found


def _surplus(aligned: Alignment, name: str) -> tuple[int, int]:
    """How many operators the candidate has more, and the reference, of equal ones by a hash."""
    left, right = (getattr(side.view.hashes, name)[side.view.is_op] for side in (aligned.reference, aligned.candidate))
    keys, numbers = np.unique(np.concatenate([left, right]), return_inverse=True)
    more = np.bincount(numbers[len(left) :], minlength=len(keys)) - np.bincount(
        numbers[: len(left)], minlength=len(keys)
    )
    return int(more[more > 0].sum()), -int(more[more < 0].sum())
