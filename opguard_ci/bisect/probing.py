"""Which commit of a line to try next: the middle, and around commits that cannot be tested, further and further out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def allowance(num_commits: int) -> int:
    """The most testable probes that a search of so many commits may take: ceil(log2 n) + 2."""
    return max(num_commits - 1, 0).bit_length() + 2


def choose(line: Sequence[bool], spare: int) -> int:
    """The place to try next.

    Args:
        line: along a line of commits of which none has a known class: True where a commit was not tried, False where
            it was tried and could not be tested.
        spare: testable probes that are left; jumps away from the middle never spend more.

    The middle first; then like ``git bisect skip`` away from what cannot be tested, but by growing steps to both
    sides, so that a block of broken commits costs the logarithm of its size. A jump splits the line unevenly: it is
    only made where the larger part can still be searched with what is left.

    """
    untried = [place for place, is_untried in enumerate(line) if is_untried]
    assert untried
    # Broken commits at the rim are left over from earlier steps and say nothing about where the middle is.
    first, last = untried[0], untried[-1]
    rank = {place: number for number, place in enumerate(untried)}
    for place in _spiral((first + last + 1) // 2, first, last):
        if place in rank:
            larger = max(rank[place], len(untried) - 1 - rank[place])
            if 1 + larger.bit_length() <= spare:
                return place
    return untried[len(untried) // 2]


def _spiral(center: int, first: int, last: int) -> Iterator[int]:
    yield center
    step = 1
    while center + step <= last or center - step >= first:
        if center + step <= last:
            yield center + step
        if center - step >= first:
            yield center - step
        step *= 4
