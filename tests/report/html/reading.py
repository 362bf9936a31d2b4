"""Reads a page as a browser would, and says what is in it."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = frozenset(("meta",))
_TAGS = frozenset(
    ["html", "head", "meta", "title", "style", "body", "main", "footer", "header", "section", "article", "div", "span",
     "p", "h1", "h2", "h3", "h4", "dl", "dt", "dd", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td",
     "code", "pre", "b", "i", "small", "mark", "a", "details", "summary", "figure", "figcaption", "svg", "rect", "path"]
)  # fmt: skip


class Page(HTMLParser):
    """The elements and texts of a page; AssertionError for a tag that the report never writes, or none that fits."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.classes: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS, tag
        self.attributes += attrs
        self.classes += [name for key, value in attrs if key == "class" and value for name in value.split()]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All that is to be read."""
        return "".join(self.texts)
