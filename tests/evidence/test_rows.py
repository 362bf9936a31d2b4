"""Which rows of a batch are others, and which only moved."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.evidence.rows import changed_rows, rows_in_words


def batch(rows: list[int]) -> np.ndarray:
    """Two equal elements per row."""
    return np.repeat(np.array(rows, np.uint32), 2)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_a_shuffle_is_told_with_where_each_row_was(rows: list[int], random):
    """Whatever rows are there twice."""
    shuffled = rows[:]
    random.shuffle(shuffled)
    found = changed_rows(batch(rows), batch(shuffled), len(rows))
    assert found is not None
    assert found["differ"] == sum(a != b for a, b in zip(rows, shuffled, strict=True))
    assert found["reordered"] == (rows != shuffled)
    assert all(shuffled[now] == rows[before] for now, before in found["from"])
    assert len({before for _, before in found["from"]}) == len(found["from"])


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6), st.lists(st.integers(0, 5), min_size=2, max_size=6))
def test_what_differs_is_counted(left: list[int], right: list[int]):
    """Rows that are equal in place are never said to have moved."""
    size = min(len(left), len(right))
    left, right = left[:size], right[:size]
    found = changed_rows(batch(left), batch(right), size)
    assert found is not None
    differ = [row for row in range(size) if left[row] != right[row]]
    assert (found["of"], found["differ"], found["first"]) == (size, len(differ), differ[:8])
    assert all(left[before] != right[before] for _, before in found["from"])
    assert found["moved"] <= found["differ"]


def test_what_has_no_rows():
    """One row, none, or more than one looks at."""
    for rows, size in ((batch([1]), 1), (batch([]), 2), (batch([1, 2]), 1 << 17)):
        assert changed_rows(rows, rows, size) is None


def test_each_case_has_its_words():
    """As a report says them."""

    def words(left: list[int], right: list[int]) -> str:
        found = changed_rows(batch(left), batch(right), len(left))
        assert found is not None
        return rows_in_words(found)

    assert words([1, 2, 3], [2, 1, 3]) == "the same 3 rows in another order (row 0 was row 1, row 1 was row 0)"
    assert words([1, 2, 3], [1, 9, 3]) == "row 1 of 3 is another"
    assert words([1, 2, 3], [7, 8, 9]) == "all 3 rows are others"
    assert words([1, 2, 3, 4], [2, 9, 3, 4]) == (
        "2 of 4 rows are others (0, 1); 1 of these the reference has in other places"
    )
