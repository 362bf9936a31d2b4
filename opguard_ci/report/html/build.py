"""Markup from Python: what is not markup is text, made printable, cut and escaped. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sized
from typing import Final

from opguard_ci.report.clean import clean

MAX_TEXT: Final = 400
"""Longest piece of text, in characters, unless a place allows more."""


class Html(str):
    """Markup. Whatever is not of this class gets escaped where it is put into some."""

    __slots__ = ()


Content = Html | str | int | float | None | Iterable["Html | str | int | float | None"]


def text(value: object, limit: int = MAX_TEXT) -> Html:
    """``value`` as text that shows as it is: one line without control characters, cut to ``limit`` characters."""
    return Html(html.escape(clean(value, limit)))


def join(*content: Content) -> Html:
    """Several pieces behind each other; None is nothing."""
    return Html("".join(_pieces(content)))


def _pieces(content: Iterable[Content]) -> Iterable[str]:
    for piece in content:
        if piece is None:
            continue
        if isinstance(piece, Html):
            yield piece
        elif isinstance(piece, (str, int, float)):
            yield text(piece)
        else:
            yield from _pieces(piece)


def el(tag: str, *content: Content, **attributes: object) -> Html:
    """An element. Names of attributes lose a closing ``_`` and have ``-`` for ``_``; None leaves one out."""
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(clean(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{shown}>{join(*content)}</{tag}>")


def section(title: str, *content: Content, **attributes: object) -> Html:
    """A part of a page with its heading."""
    return el("section", el("h2", title), *content, **attributes)


def rest(tag: str, found: Sized, shown: int) -> Html | None:
    """How many entries of a list are not shown, if any."""
    return el(tag, f"… and {len(found) - shown:,} more", class_="dim") if len(found) > shown else None


def number(value: object) -> str:
    """A number for people; a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:,}" if type(value) is int and abs(value) < 1 << 64 else clean(value, 24)


def operator(name: object) -> Html:
    """An operator's name, with the parts dimmed that are always there."""
    shown = clean(name, 120)
    space, dot, rest = shown.partition(".")
    if not dot:
        return el("span", shown, class_="name")
    base, dot, overload = rest.partition(".")
    return el("span", el("i", space + "."), el("b", base), el("i", dot + overload) if dot else None, class_="name")
