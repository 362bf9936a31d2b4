"""The search for the smallest set of pieces, against brute force."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.bisect.hunks import Answer, Ask, smallest

Set = frozenset[int]


class Asked:
    """A way to answer that counts and never answers twice, nor what is known from the start."""

    def __init__(self, count: int, answer: Ask) -> None:
        self.all = frozenset(range(count))
        self.answer = answer
        self.asked: list[Set] = []

    def __call__(self, pieces: Set) -> Answer:
        assert pieces not in self.asked and pieces not in (frozenset(), self.all)
        assert pieces <= self.all
        self.asked.append(pieces)
        return self.answer(pieces)


def needs(required: Set) -> Ask:
    return lambda pieces: "same" if required <= pieces else "other"


def subsets(count: int) -> list[Set]:
    return [frozenset(some) for size in range(count + 1) for some in combinations(range(count), size)]


some_required = st.integers(1, 40).flatmap(
    lambda count: st.tuples(st.just(count), st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4))
)


@given(some_required)
def test_the_pieces_that_matter_are_found_exactly(case: tuple[int, Set]) -> None:
    """Whatever their number; each costs the logarithm of all, and leaving each out once is the last check."""
    count, required = case
    ask = Asked(count, needs(required))
    found = smallest(count, ask)
    assert (found.pieces, found.unproven, found.is_finished) == (required, frozenset(), True)
    assert len(ask.asked) <= len(required) * (2 * count.bit_length() + 2)


@given(st.integers(2, 1000))
def test_a_good_guess_costs_one_run(count: int) -> None:
    """When the first piece alone is enough, nothing else is tried."""
    ask = Asked(count, needs(frozenset({0})))
    assert smallest(count, ask).pieces == {0}
    assert len(ask.asked) == 1


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(
    st.sampled_from(["same", "other", "unknown"]), min_size=2**n, max_size=2**n))))  # fmt: skip
def test_any_answers_end_in_a_set_without_a_spare_piece(case: tuple[int, list[Answer]]) -> None:
    """Also where pieces work against each other: the set gives the same, and no set with one piece less does."""
    count, drawn = case
    table = dict(zip(subsets(count), drawn, strict=True))
    table[frozenset()], table[frozenset(range(count))] = "other", "same"
    found = smallest(count, Asked(count, table.__getitem__))
    assert found.is_finished
    assert table[found.pieces] == "same"
    answers = {piece: table[found.pieces - {piece}] for piece in found.pieces}
    assert "same" not in answers.values()
    assert found.unproven == {piece for piece, answer in answers.items() if answer == "unknown"}


@given(some_required, st.randoms(use_true_random=False), st.integers(0, 100))
def test_sets_that_cannot_be_tried_never_hide_a_piece(case: tuple[int, Set], random: object, percent: int) -> None:
    """All that matters is among what is found."""
    count, required = case
    drawn: dict[Set, bool] = {}

    def answer(pieces: Set) -> Answer:
        is_unknown = drawn.setdefault(pieces, random.randrange(100) < percent)  # type: ignore[attr-defined]
        return "unknown" if is_unknown else needs(required)(pieces)

    assert required <= smallest(count, Asked(count, answer)).pieces


@given(st.integers(2, 9).flatmap(lambda count: st.tuples(
    st.just(count), st.frozensets(st.integers(0, count - 1), min_size=1, max_size=3),
    st.frozensets(st.integers(0, count - 1), min_size=2, max_size=5))))  # fmt: skip
def test_pieces_that_only_run_together_are_taken_or_left_together(case: tuple[int, Set, Set]) -> None:
    """A function and its callers renamed in one commit: brute force knows no smaller set."""
    count, required, together = case

    def answer(pieces: Set) -> Answer:
        if pieces & together not in (frozenset(), together):
            return "unknown"
        return needs(required)(pieces)

    found = smallest(count, Asked(count, answer))
    best = min((some for some in subsets(count) if answer(some) == "same"), key=len)
    assert found.pieces == best
    assert found.unproven == (together if together & required else frozenset())


def test_third_numbers_are_not_the_same() -> None:
    """Two pieces that each change the numbers, and together give those of the commit, are both named."""
    ask = Asked(6, lambda pieces: "same" if {1, 4} <= pieces else "other")
    assert smallest(6, ask).pieces == {1, 4}


def test_the_limit_ends_the_search_with_what_is_known() -> None:
    """The set still gives the same numbers; it says that it may hold too much."""
    required = frozenset(range(0, 60, 2))
    found = smallest(60, Asked(60, needs(required)), limit=20)
    assert not found.is_finished
    assert required <= found.pieces
