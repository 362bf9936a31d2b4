"""What each of two runs did that the other did not do, or not as often."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.compare.pairs import Pairs
from opguard_ci.compare.traces import side_of
from opguard_ci.compare.values import full_key
from opguard_ci.trace.model import Event

from .build import op, trace


def _pairs(reference: list[Event], candidate: list[Event]) -> Pairs:
    return Pairs(side_of(trace(reference)), side_of(trace(candidate)))


_CALLS = st.lists(st.integers(0, 3).map(lambda n: op(f"f{n % 2}", [10 + n], [20 + n])), max_size=10)


@given(_CALLS, _CALLS)
def test_unmatched_is_the_difference_of_multisets(left: list[Event], right: list[Event]) -> None:
    """Each call takes one of the other run that did the same."""
    pairs = _pairs(left, right)
    mine, others = Counter(map(full_key, right)), Counter(map(full_key, left))
    assert Counter(map(full_key, pairs.unmatched(0).events)) == mine - others
    assert Counter(map(full_key, pairs.unmatched_in_reference(0).events)) == others - mine


def test_the_one_without_a_counterpart_is_left() -> None:
    """Of two equal calls where the reference has one, the one at another place is unmatched."""
    left = [op("a"), op("f", [10], [20]), op("b"), op("f", [11], [21])]
    right = [op("a"), op("f", [10], [20]), op("b"), op("f", [10], [20])]
    pairs = _pairs(left, right)
    first, second = (pairs.candidate.view(0).events[n] for n in (1, 3))
    assert first not in pairs.unmatched(0)
    assert second in pairs.unmatched(0)
    assert pairs.unmatched(0).by_operator["aten.f.default"] == [second]


def test_copies_can_be_unmatched() -> None:
    """They are nobody's origin, but one that was left out is to be found."""
    pairs = _pairs([op("clone", [10], [10], kind="copy")], [])
    assert pairs.reference.view(0).events[0] in pairs.unmatched_in_reference(0)
    assert pairs.unmatched_in_reference(0).events == []
