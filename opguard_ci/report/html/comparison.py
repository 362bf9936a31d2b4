"""One comparison: verdict, sides, divergence, tensors, contract, operators, and what else is to be known. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.advice import next_steps
from opguard_ci.report.attribution import said
from opguard_ci.report.clean import clean_lines
from opguard_ci.report.divergence import divergence_line
from opguard_ci.report.html.build import Content, Html, el, join, number, rest, section, text
from opguard_ci.report.html.contract import strips
from opguard_ci.report.html.divergence import cause, divergence, facts, headline, place
from opguard_ci.report.html.operators import operators
from opguard_ci.report.html.tensors import tensors
from opguard_ci.report.words import VERDICTS

MAX_ITEMS: Final = 50
MAX_BLOCKS: Final = 10
"""So many further divergences, findings and the like are shown in full."""
_GOOD: Final = ("identical", "equivalent", "ok", "found")
_WARN: Final = ("environment", "no-reference", "findings", "candidates", "nothing")
_LONG: Final = 2000

Document = Mapping[str, Any]


def chip(verdict: str) -> Html:
    """A verdict in its colour."""
    kind = "good" if verdict in _GOOD else "warn" if verdict in _WARN else "bad"
    return el("span", verdict, class_=f"chip {kind}")


def top(document: Document, *, level: str, found: Html | None = None) -> Html:
    """Verdict and headline; ``found``: what a bisection said, in a line."""
    verdict, first, error = document["verdict"], document.get("first_divergence"), document.get("error")
    title, more = join(VERDICTS.get(verdict, "")), join()
    if first:
        title, more = headline(first), join(place(first), ": ", cause(first))
    elif error:
        more = text(f"{error['message']} [{error['slug']}]", _LONG)
    head = el("div", chip(verdict), el("span", document.get("target"), class_="dim"))
    return el("header", head, el(level, title), el("p", more, class_="lead") if more else None, found)


def comparison(document: Document, picture: Mapping[str, Any] | None) -> Html:
    """All parts but the top."""
    first = document.get("first_divergence")
    return join(
        _sides(document),
        _traceback(document),
        section("First divergence", divergence(first)) if first else None,
        tensors(first.get("tensors") or ()) if first else None,
        _attribution(document),
        strips(picture) if picture else None,
        operators(picture["operators"]) if picture and picture.get("operators") else None,
        _others(document.get("unstable"), "Also unstable"),
        _others(document.get("findings"), "Findings of the single run"),
        _transient(document.get("transient") or ()),
        _contract(document.get("contract") or ()),
        _notes(document),
    )


def _sides(document: Document) -> Html | None:
    sides = [(name, document.get(name) or {}) for name in ("reference", "candidate")]
    if not any(side.get("commit") or side.get("environment") or side.get("trace") for _, side in sides):
        return None
    same = sides[0][1].get("environment") == sides[1][1].get("environment")
    return el("div", [_side(name, side, same) for name, side in sides], class_="columns sides")


def _side(name: str, side: Mapping[str, Any], same: bool) -> Html:
    rows: list[tuple[str, Content]] = []
    if side.get("kind"):
        rows.append(("is", f"a {side['kind']}" + (", from the cache" if side.get("cached") else "")))
    commit = str(side["commit"]) if side.get("commit") else None
    rows.append(("commit", el("code", commit) if commit else "none"))
    if side.get("argv") is not None:
        rows.append(
            ("arguments", el("code", shlex.join(str(word) for word in side["argv"])) if side["argv"] else "none")
        )
    if side.get("environment"):
        words = el("span", " the same on both sides" if same else " another one", class_="dim" if same else "other")
        rows.append(("environment", join(el("code", side["environment"]), words)))
    for key in ("trace", "path", "who", "when", "why"):
        if side.get(key):
            rows.append((key, str(side[key])))
    return el("article", el("h3", name), facts(rows), class_="card")


def _traceback(document: Document) -> Html | None:
    lines = clean_lines(str((document.get("error") or {}).get("traceback") or ""))
    return section("What was raised", _lines(lines)) if lines else None


def _lines(lines: Sequence[str]) -> Html:
    return el("pre", [join(line, Html("\n")) for line in lines])


def _attribution(document: Document) -> Html | None:
    parts = document.get("attribution")
    if not parts:
        return None
    rows: list[tuple[str, Content]] = [(name, said(parts, name)) for name in ("environment", "code")]
    environment = parts["environment"]
    first = environment.get("first_divergence") if environment["verdict"] == "diverged" else None
    lines = [*environment.get("notes", ()), *environment.get("differs", ())]
    return section(
        "Environment or code",
        facts(rows),
        [el("h3", "What the environment changed"), divergence(first)] if first else None,
        _items(lines),
    )


def _items(lines: Sequence[object]) -> Html | None:
    shown = [el("li", text(line, _LONG)) for line in lines[:MAX_ITEMS]]
    return el("ul", shown, rest("li", lines, MAX_ITEMS)) if shown else None


def _others(found: Sequence[Mapping[str, Any]] | None, title: str) -> Html | None:
    """Divergences that are not the first, each behind its own line."""
    if not found:
        return None
    shown = found[:MAX_BLOCKS]
    blocks = [el("details", el("summary", headline(item), " — ", cause(item)), divergence(item)) for item in shown]
    return section(f"{title} ({number(len(found))})", blocks, rest("p", found, MAX_BLOCKS))


def _transient(found: Sequence[Mapping[str, Any]]) -> Html | None:
    if not found:
        return None
    names = ("step", "phase", "operator", "module", "what")
    head = el("tr", [el("th", name, scope="col") for name in names])
    rows = [el("tr", [el("td", cell) for cell in divergence_line(item)]) for item in found[:MAX_ITEMS]]
    table = el("div", el("table", el("thead", head), el("tbody", rows), class_="plain"), class_="scroll")
    more = rest("p", found, MAX_ITEMS)
    return section(
        f"Differed in passing ({number(len(found))})", el("details", el("summary", "operators"), table, more)
    )


def _contract(found: Sequence[Mapping[str, Any]]) -> Html | None:
    different = [value for value in found if not value.get("equal")]
    if not different:
        return None
    step = min(int(value["step"]) for value in different)
    names = list(dict.fromkeys(str(value["name"]) for value in different if value["step"] == step))
    shown = [join(el("code", name), " ") for name in names[:MAX_ITEMS]]
    where = "before step 0" if step < 0 else f"in step {step}"
    return section("Promised values that differ", el("p", f"First {where}: ", shown, rest("span", names, MAX_ITEMS)))


def _notes(document: Document) -> Html | None:
    rows: list[tuple[str, Content]] = []
    for name in ("profile", "level"):
        if document.get(name):
            rows.append((name, str(document[name])))
    structure = {name: n for name, n in (document.get("structure") or {}).items() if n}
    if structure:
        rows.append(("operators", ", ".join(f"{number(n)} {name}" for name, n in structure.items())))
    coverage = document.get("coverage") or {}
    if coverage.get("operators"):
        unseen = ", ".join(str(item) for item in coverage.get("unseen") or ())
        said = f"{number(coverage.get('hashed'))} of {number(coverage['operators'])} fingerprinted"
        rows.append(("coverage", said + (f"; ran unseen: {unseen}" if unseen else "")))
    steps = [*next_steps(document), *([(document["command"], "finds the commit")] if document.get("command") else [])]
    commands = [
        el("li", el("code", text(command, _LONG)), " ", el("span", why, class_="dim")) for command, why in steps
    ]
    notes = _items(document.get("notes") or ())
    if not rows and not notes and not commands:
        return None
    return section(
        "Notes",
        facts(rows) if rows else None,
        notes,
        [el("h3", "Next"), el("ul", commands)] if commands else None,
    )
