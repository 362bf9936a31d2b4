from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_ci.report.layout import WIDTH, count, field, join_words, plain, shorten, table

cells = st.text("abc.", max_size=150)


@settings(deadline=None)
@given(st.lists(st.lists(cells, min_size=1, max_size=5), min_size=1, max_size=4))
def test_tables_fit(rows: list[list[str]]) -> None:
    """However long the cells are, a table of up to five columns fits the width."""
    assert all(len(line.text) <= WIDTH for line in table(rows))


def test_columns_are_aligned() -> None:
    """Every column begins at one place."""
    assert plain(table([["a", "bb"], ["ccc", "d"]], indent=2)) == "  a    bb\n  ccc  d\n"


@given(st.text(max_size=50), st.integers(1, 60))
def test_shorten(text: str, limit: int) -> None:
    """Short text stays as it is; long text keeps its two ends."""
    short = shorten(text, limit)
    assert len(short) <= limit
    assert short == text or (len(text) > limit and "…" in short)


def test_fields_wrap_in_their_column() -> None:
    """The second line of a value stands below the first."""
    lines = field("what", "word " * 30)
    assert lines[0].text.startswith("  what        word") and lines[1].text.startswith(" " * 14 + "word")


def test_words() -> None:
    """Lists and numbers read as a sentence does."""
    assert [join_words(["a", "b", "c"][:number]) for number in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert [count(number, "run") for number in (0, 1, 1234)] == ["0 runs", "1 run", "1,234 runs"]
