"""A verdict as one HTML file: made for reading from disk, with neither network nor scripts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.check import failed, header
from opguard_ci.report.html import bisection, comparison
from opguard_ci.report.html.build import Html, el, join, rest, section
from opguard_ci.report.html.divergence import cause, headline
from opguard_ci.report.html.page import page

MAX_RESULTS: Final = 40
"""So many results of a check are shown in full, those that failed first."""
MAX_LISTED: Final = 400
MAX_SIZE: Final = 8_000_000
"""From so many characters on, further results of a check are left out."""

Picture = Mapping[str, Any]
Document = Mapping[str, Any]


def compare_page(document: Document, picture: Picture | None) -> str:
    """The page of one comparison. ``picture``: of ``compare.picture``, null if there were no traces to draw."""
    return page(f"{document['verdict']}: {document.get('target')}", _compared(document, picture, "h1"))


def bisect_page(document: Document, picture: Picture | None) -> str:
    """The page of a bisection, with the commit compared with its parent."""
    return page(f"{document['verdict']}: {document.get('target')}", _bisected(document, picture, "h1"))


def check_page(document: Document, pictures: Sequence[tuple[Picture | None, Picture | None]], *, strict: bool) -> str:
    """The page of a check. ``pictures``: of each result and of its bisection."""
    results = document["results"]
    if len(results) == 1:
        return page(f"{document['verdict']}: {results[0]['target']}", _result(results[0], pictures[0], "h1"))
    order = sorted(range(len(results)), key=lambda n: not failed(results[n], strict))
    top = el("header", el("div", comparison.chip(document["verdict"])), el("h1", header(document)))
    parts: dict[int, Html] = {}
    for n in order[:MAX_RESULTS]:
        if sum(map(len, parts.values())) > MAX_SIZE:
            break
        inner = _result(results[n], pictures[n], "h2")
        parts[n] = el("div", inner, class_="result", id=f"result-{n}")
    entries = [_entry(results[n], f"#result-{n}" if n in parts else None) for n in order[:MAX_LISTED]]
    listed = el("ol", entries, rest("li", results, MAX_LISTED), class_="results")
    words = f"The first {len(parts)} are shown in full." if len(parts) < len(results) else None
    recipes = section("Recipes", listed, el("p", words, class_="dim") if words else None)
    return page(f"{document['verdict']}: {len(results)} recipes", top, recipes, list(parts.values()))


def _entry(result: Document, link: str | None) -> Html:
    first = result.get("first_divergence")
    said = join(" ", headline(first), ": ", cause(first)) if first else None
    name = el("a", result["target"], href=link) if link else el("span", result["target"])
    return el("li", comparison.chip(result["verdict"]), " ", name, said)


def _result(result: Document, pictures: tuple[Picture | None, Picture | None], level: str) -> Html:
    found = result.get("bisect")
    if not found:
        return _compared(result, pictures[0], level)
    if found["verdict"] == "error":
        more = section("Bisection", el("p", f"{found['error']['message']} [{found['error']['slug']}]"))
        return join(_compared(result, pictures[0], level), more)
    shown = _compared(result, pictures[0], level, bisection.line(found))
    return join(shown, el("div", _bisected(found, pictures[1], "h2"), class_="result"))


def _compared(document: Document, picture: Picture | None, level: str, found: Html | None = None) -> Html:
    return join(comparison.top(document, level=level, found=found), comparison.comparison(document, picture))


def _bisected(document: Document, picture: Picture | None, level: str) -> Html:
    top, search = bisection.top(document, level=level), bisection.bisection(document)
    if not document.get("divergence"):
        return join(top, search, comparison.comparison({"verdict": "", "notes": document.get("notes")}, None))
    named = {name: value for name, value in document.items() if name not in ("target",)}
    return join(top, search, comparison.comparison(named, picture))
