"""Two lists of operators are laid side by side: in order, one to one, and as much as possible."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.compare import align as module
from opguard_ci.compare.align import align, shortest_edit, structure
from opguard_ci.compare.hashes import Hasher
from opguard_ci.compare.side import StepView
from opguard_ci.trace.arrays import StepArrays
from opguard_ci.trace.model import Event
from tests.strategies import table_of

from .build import op

_LISTS = st.lists(st.integers(0, 3), max_size=14)


def _longest_common(left: list[int], right: list[int]) -> int:
    rows = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for a, mine in enumerate(left):
        for b, other in enumerate(right):
            rows[a + 1][b + 1] = rows[a][b] + 1 if mine == other else max(rows[a][b + 1], rows[a + 1][b])
    return rows[-1][-1]


@given(_LISTS, _LISTS)
def test_shortest_edit_is_a_longest_common_subsequence(left: list[int], right: list[int]) -> None:
    """As long as the table of all subsequences says, rising on both sides, of equal keys only."""
    pairs = shortest_edit(left, right)
    assert pairs is not None
    assert len(pairs) == _longest_common(left, right)
    assert all(left[a] == right[b] for a, b in pairs)
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(pairs))


def test_shortest_edit_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that have too little in common are left to the anchors."""
    monkeypatch.setattr(module, "_MAX_EDITS", 3)
    assert shortest_edit([1, 2, 3], [4, 5, 6]) is None


def _operators(values: list[int], shift: int = 0) -> StepView:
    return _view([op(f"f{value}", [10 + n], [100 + n + shift]) for n, value in enumerate(values)])


def _view(events: list[Event]) -> StepView:
    return StepView(StepArrays.of(table_of(events)), Hasher())


@given(_LISTS, _LISTS, st.sampled_from([0, 4, 10_000]))
def test_pairs_rise_and_stand_alike(left: list[int], right: list[int], cells: int) -> None:
    """However long the lists are held to be, pairs are one to one, in order, and of one operator each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MAX_CELLS", cells)
        aligned = align(_operators(left), _operators(right, 1000))
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(aligned.pairs))
    assert all(aligned.reference[a].op == aligned.candidate[b].op for a, b in aligned.pairs)


@given(_LISTS, _LISTS)
def test_blocks_and_pairs_cover_both_lists(left: list[int], right: list[int]) -> None:
    """An event either has a counterpart, whose counterpart it is, or lies in the block around it."""
    aligned = align(_operators(left), _operators(right, 1000))
    for event in aligned.candidate:
        like = aligned.counterpart(event)
        before, after = aligned.blocks(event)
        if like is None:
            assert event in after
            assert all(aligned.counterpart_of_reference(other) is None for other in before)
        else:
            assert aligned.counterpart_of_reference(like) == event
            assert (before, after) == ([], [])


def test_what_did_the_same_is_paired_though_it_moved() -> None:
    """Equal calls anchor the alignment before places do."""
    left = _view([op("f", [10], [20]), op("f", [11], [21])])
    right = _view([op("f", [12], [22]), op("f", [10], [20]), op("f", [11], [21])])
    aligned = align(left, right)
    assert aligned.pairs == [(0, 1), (1, 2)]


def test_structure_counts() -> None:
    """Inserted, removed and moved operators of a step."""
    left = _view([op("a"), op("b"), op("c"), op("d")])
    right = _view([op("b"), op("a"), op("c"), op("e"), op("f")])
    assert structure(align(left, right)) == {"inserted": 2, "removed": 1, "moved": 1}


def test_other_arguments_are_neither_inserted_nor_removed() -> None:
    """The operator is on both sides: it changed, wherever it stands, as often as it has no equal on the other side."""
    left = _view([op("a", extra="n=1"), op("b"), op("a", extra="n=2"), op("a", extra="n=2")])
    right = _view([op("b"), op("a", extra="n=2"), op("a", extra="n=3"), op("a", extra="n=4"), op("a", extra="n=4")])
    assert structure(align(left, right)) == {"inserted": 1, "removed": 0, "moved": 0, "changed": 2}


@pytest.mark.parametrize("names", [2, 200])
def test_long_lists_take_no_quadratic_time(names: int) -> None:
    """4,000 operators with 40 changes are laid side by side in a moment, whether names repeat or not."""
    rng = random.Random(names)
    left = _operators([rng.randrange(names) for _ in range(4000)])
    right = [event for event in left.events if rng.random() > 0.01]
    other = _operators([int(event.op[6:].split(".")[0]) for event in left.events], 1)
    start = time.process_time()
    aligned = align(other, _view(right))
    assert time.process_time() - start < 5
    assert len(aligned.pairs) > 0.97 * len(right)


def test_an_event_of_elsewhere_has_no_place() -> None:
    """What is in neither list has neither counterpart nor block."""
    aligned = align(_operators([1]), _operators([1]))
    stranger = _operators([1, 2, 3]).event(2)
    assert aligned.counterpart(stranger) is None
    assert aligned.blocks(stranger) == ([], [])
