"""Markup: whatever is no markup shows as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.report.clean import clean
from opguard_ci.report.html.build import Html, el, join, number, operator
from tests.report.html.reading import Page


@given(st.text(), st.text())
def test_text_stays_text(content: str, value: str) -> None:
    """As content and as an attribute, with whatever characters."""
    page = Page(el("p", content, title=value))
    assert page.text == clean(content)
    assert page.attributes == [("title", clean(value))]


def test_pieces() -> None:
    """Lists are flat, None is nothing, markup stays markup."""
    assert join("a<", None, ["b", [Html("<i></i>"), 3]]) == "a&lt;b<i></i>3"
    assert el("td", "x", class_="a", aria_label="b", title=None) == '<td class="a" aria-label="b">x</td>'


@given(st.text(max_size=60))
def test_an_operator_s_name_is_all_there(name: str) -> None:
    """However many dots it has."""
    assert Page(operator(name)).text == clean(name, 120)


def test_numbers() -> None:
    """Whole ones with separators, others short."""
    shown = [number(n) for n in (1234567, 0.000123456, 1911.5, None, float("inf"), 10**40)]
    assert shown == ["1,234,567", "0.000123", "1,912", "–", "inf", "1" + "0" * 22 + "…"]
