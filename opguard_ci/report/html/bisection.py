"""What a bisection found: the commit, the hunks that count, and what else was tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.bisect import HEADLINES, hunk_name
from opguard_ci.report.html.build import Content, Html, el, join, number, rest, section
from opguard_ci.report.html.comparison import chip
from opguard_ci.report.html.divergence import facts

MAX_COMMITS: Final = 40
MAX_HUNKS: Final = 20
MAX_LINES: Final = 60

Document = Mapping[str, Any]


def top(document: Document, *, level: str) -> Html:
    """Verdict, and the commit if it is one."""
    first = document.get("first_bad")
    subject = (document.get("subjects") or {}).get(first) if first else None
    title = (
        join(el("code", str(first)[:12]), " ", subject) if first else join(HEADLINES.get(str(document["verdict"]), ""))
    )
    lead = "the first commit whose numbers are not those of the good end" if first else None
    head = el("div", chip(document["verdict"]), el("span", document.get("target"), class_="dim"))
    return el("header", head, el(level, title), el("p", lead, class_="lead") if lead else None)


def bisection(document: Document) -> Html:
    """The search and its hunks."""
    subjects = document.get("subjects") or {}
    rows: list[tuple[str, Content]] = []
    if not document.get("first_bad"):
        candidates = list(document.get("candidates") or ())
        rows += [("one of" if n == 0 else "", _named(c, subjects)) for n, c in enumerate(candidates[:MAX_COMMITS])]
        rows += [("", more)] if (more := rest("span", candidates, MAX_COMMITS)) else []
    rows.append(("good end", el("code", document.get("good"))))
    rows.append(("bad end", el("code", document.get("bad"))))
    rows.append(("runs", f"{number(document.get('runs'))} made, {number(document.get('cached'))} known from before"))
    if document.get("first_bad"):
        rows.append(("see", el("code", f"git show {str(document['first_bad'])[:12]}")))
    return join(
        _hunks(document),
        section("The search", facts(rows), _transitions(document, subjects), _skipped(document)),
    )


def line(document: Document) -> Html:
    """The result in a line."""
    first, subjects = document.get("first_bad"), document.get("subjects") or {}
    hunks = ", ".join(hunk_name(hunk) for hunk in (document.get("hunks") or ())[:3])
    said = _named(first, subjects) if first else join(HEADLINES.get(str(document["verdict"]), ""))
    return el("p", "Bisection: ", said, [" · ", el("code", hunks)] if hunks else None)


def _named(commit: object, subjects: Mapping[str, str]) -> Html:
    return join(el("code", str(commit)[:12]), " ", subjects.get(str(commit)))


def _hunks(document: Document) -> Html | None:
    hunks = document.get("hunks") or ()
    if not hunks:
        return None
    shown = [_hunk(hunk) for hunk in hunks[:MAX_HUNKS]]
    words = "The smallest set of the commit's changes that gives its numbers."
    return section("The change", el("p", words, class_="dim"), shown, rest("p", hunks, MAX_HUNKS))


def _hunk(hunk: Mapping[str, Any]) -> Html:
    lines = list(hunk.get("text") or ())
    drawn = [_line(str(line)) for line in lines[:MAX_LINES]]
    left_out = len(lines) - len(drawn) + int(hunk.get("more") or 0)
    if left_out > 0:
        drawn.append(el("span", f"… {left_out} more lines", class_="dim"))
    head = el("figcaption", el("b", hunk_name(hunk)))
    return el("figure", head, el("pre", drawn) if drawn else None, class_="hunk here" if hunk.get("frame") else "hunk")


def _line(line: str) -> Html:
    kind = {"+": "inserted", "-": "removed"}.get(line[:1], "context")
    return el("span", line.expandtabs(4), class_=kind)


def _transitions(document: Document, subjects: Mapping[str, str]) -> Html | None:
    found = document.get("transitions") or ()
    if len(found) < 2:
        return None
    head = el("tr", [el("th", name, scope="col") for name in ("class", "commit", "declared")])
    rows = [
        el("tr", el("td", f"{t.get('from')} → {t.get('to')}"), el("td", _named(t.get("commit"), subjects)),
           el("td", "yes" if t.get("declared") else "no"))
        for t in found[:MAX_COMMITS]
    ]  # fmt: skip
    table = el("table", el("thead", head), el("tbody", rows), class_="plain")
    return join(el("h3", "All changes found"), table, rest("p", found, MAX_COMMITS))


def _skipped(document: Document) -> Html | None:
    found: Sequence[Mapping[str, Any]] = document.get("skipped") or ()
    if not found:
        return None
    rows = [el("li", el("code", str(entry["commit"])[:12]), " ", str(entry["reason"])) for entry in found[:MAX_COMMITS]]
    return join(el("h3", "Skipped"), el("ul", rows, rest("li", found, MAX_COMMITS)))
