"""Lines of a report: aligned fields, tables and wrapped sentences, 100 columns wide. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

WIDTH: Final = 100
LABEL: Final = 14
"""Columns of a field's label, its indentation included."""

_INDENT: Final = "  "


class Line(NamedTuple):
    """One line of a report and what it is: "", "good", "bad", "warn", "title", "mark" or "dim"."""

    text: str
    style: str = ""


def title(text: str) -> list[Line]:
    """Start a section: an empty line and its heading."""
    return [Line(""), Line(text, "title")]


def paragraph(text: str, *, indent: str = _INDENT, style: str = "") -> list[Line]:
    """Wrap a sentence."""
    return [Line(line, style) for line in _wrap(text, indent, indent)]


def items(texts: Iterable[str], *, style: str = "") -> list[Line]:
    """Make a list with a dash before each item."""
    return [Line(line, style) for text in texts for line in _wrap(text, f"{_INDENT}- ", f"{_INDENT}  ")]


def field(label: str, value: str, *, style: str = "") -> list[Line]:
    """Put ``label`` before its value, the value wrapped in a column of its own."""
    first = f"{_INDENT}{label}".ljust(LABEL - 1) + " "
    return [Line(line, style) for line in _wrap(value, first, " " * LABEL)]


def table(rows: Sequence[Sequence[str]], *, indent: int = LABEL, head: bool = False) -> list[Line]:
    """Lay out rows in aligned columns; the widest ones are shortened in the middle until a row fits."""
    if not rows:
        return []
    columns = max(len(row) for row in rows)
    cells = [[*row, *[""] * (columns - len(row))] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(columns)]
    while (excess := indent + sum(widths) + 2 * (columns - 1) - WIDTH) > 0 and max(widths) > 16:
        widest = max(widths)
        others = [width for width in widths if width < widest]
        limit = max(widest - excess, max(others, default=16), 16) if widths.count(widest) == 1 else widest - 1
        widths = [min(width, limit) for width in widths]
    cells = [[shorten(cell, width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    lines = []
    for number, row in enumerate(cells):
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        lines.append(Line(" " * indent + text, "dim" if head and number == 0 else ""))
    return lines


def shorten(text: str, limit: int) -> str:
    """Replace the middle of ``text`` by an ellipsis where it is longer than ``limit``."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def join_words(words: Sequence[str]) -> str:
    """List words as a sentence does: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def count(number: int, noun: str) -> str:
    """Put a number before its noun: "1 value", "2 values", "1,234 values"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def plain(lines: Iterable[Line]) -> str:
    """Join the lines as text without styles."""
    return "".join(f"{line.text}\n" for line in lines)


def _wrap(text: str, first: str, rest: str) -> list[str]:
    wrapped = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )
    return wrapped or [first.rstrip()]
