"""The result of ``opguard check`` as terminal text: a header, a line a recipe, a block a failure. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opguard_ci.capture.window import Window
from opguard_ci.report.allowances import allowance_sentences, allowed_words
from opguard_ci.report.attribution import said
from opguard_ci.report.bisect import render_bisect
from opguard_ci.report.clean import clean
from opguard_ci.report.coverage import coverage_line, together
from opguard_ci.report.divergence import place
from opguard_ci.report.layout import Line, count, join_words, paragraph, table, title
from opguard_ci.report.text import error_lines, render
from opguard_ci.report.words import VERDICTS

_PASSING: Final = ("identical", "equivalent")
_SHORT: Final = 12

Result = Mapping[str, Any]


def render_check(document: Mapping[str, Any], *, strict: bool = False) -> tuple[Line, ...]:
    """Lay out the object of ``check``; with ``strict`` an equivalent recipe has failed and gets a block."""
    results = document["results"]
    lines = [Line(header(document)), Line("")]
    rows = [[clean(each["verdict"]), clean(each["target"]), reference_name(each), reason(each)] for each in results]
    if len({row[2] for row in rows}) == 1:  # the header has said it
        rows = [[verdict, target, said] for verdict, target, _, said in rows]
    styles = ["good" if not failed(each, strict) else "bad" for each in results]
    lines += [Line(line.text, style) for line, style in zip(table(rows, indent=0), styles, strict=True)]
    if seen := coverage(document):
        lines += [Line(""), *paragraph(f"coverage: {seen}", indent="")]
    for each in results:
        if failed(each, strict) or is_skipped(each):
            lines += [Line("")]
            lines += block(each) if failed(each, strict) else paragraph(_skipped_line(each), indent="", style="dim")
        elif sentences := allowance_sentences(each):
            lines += [Line(""), *paragraph(f"{clean(each['target'])}: {'; '.join(sentences)}", indent="", style="dim")]
    return tuple(lines)


def coverage(document: Mapping[str, Any]) -> str:
    """What was seen of all recipes together; empty if nothing ran."""
    found = [each["coverage"] for each in document["results"] if each.get("coverage")]
    return coverage_line(together(found)) if found else ""


def header(document: Mapping[str, Any]) -> str:
    """What was compared with what: reference (cached or measured), environment and profile."""
    results = document["results"]
    references = join_words(sorted({reference_name(each) for each in results}))
    keys = join_words(sorted({clean(each["environment"]) for each in results if each.get("environment")}))
    profiles = join_words(sorted({clean(each["profile"]) for each in results if each.get("profile")}))
    counted = count(len(results), "recipe")
    return f"opguard check: {counted}, reference {references}, environment {keys or 'unknown'}, profile {profiles}"


def reference_name(result: Result) -> str:
    """The reference of a result in a few words."""
    reference = result.get("reference") or {}
    if reference.get("kind") not in ("commit", "golden"):
        return "none"
    name = f"{reference['kind']} {clean(reference.get('commit') or '')[:_SHORT]}"
    if reference["kind"] == "commit":
        name += " (cached)" if reference.get("cached") else " (measured)"
    return name


def reason(result: Result) -> str:
    """What a line says beside the verdict: where it diverged, or why there is none, or what let it pass."""
    if error := result.get("error"):
        return clean(f"{error['slug']}: {error['message']}", 200)
    if first := result.get("first_divergence"):
        return f"{place(first)}: {clean(first.get('cause'))}"
    if (parts := result.get("attribution")) and parts["environment"]["verdict"] == "diverged":
        return f"the environment changed {said(parts, 'environment')}"
    if result["verdict"] == "no-reference":
        return clean((result.get("notes") or [""])[0])
    return ", ".join(filter(None, [allowed_words(result), _window_words(result)]))


def _window_words(result: Result) -> str:
    """In which steps alone operators were looked at; empty where in all."""
    window = result.get("window")
    return f"operators {Window(window['from'], window['to'])} only" if window else ""


def failed(result: Result, strict: bool = False) -> bool:
    """Whether a result lets the check fail."""
    if is_skipped(result):
        return False
    return result["verdict"] not in _PASSING or (strict and result["verdict"] == "equivalent")


def is_skipped(result: Result) -> bool:
    """Whether there was nothing to compare with, and that is accepted."""
    return result["verdict"] == "no-reference" and result.get("missing") == "skip"


def block(result: Result) -> list[Line]:
    """All that is known about one failure; its last line is the command that goes on."""
    lines = title(clean(result["target"]))[1:]
    if result["verdict"] == "error":
        lines += error_lines(result)
    elif result["verdict"] == "no-reference":
        lines += paragraph(headline(result), indent="", style="warn")
    else:
        lines += render({name: value for name, value in result.items() if name != "target"})
    if found := result.get("bisect"):
        lines += error_lines(found) if found["verdict"] == "error" else render_bisect(found)
    if (command := result.get("command")) and (found or {}).get("verdict") != "found":
        lines += [Line(""), Line(f"  {clean(command, 2000)}", "mark")]
    return lines


def headline(result: Result) -> str:
    """One sentence about a result, for places that show no more."""
    said = reason(result) or VERDICTS.get(result["verdict"], "")
    return f"{clean(result['verdict'])}: {said}" if said else clean(result["verdict"])


def user_line(result: Result) -> tuple[str | None, int]:
    """File, relative to the root, and line to show a failure at: the innermost of the user's own, else the target's."""
    first = result.get("first_divergence") or {}
    for frame in first.get("stack") or ():
        file, line = frame.get("file"), frame.get("line")
        if isinstance(file, str) and file and not file.startswith(("/", "..", "<")) and type(line) is int and line > 0:
            return file, line
    file = result.get("file")
    return (file if isinstance(file, str) and not file.startswith("..") else None), 1


def _skipped_line(result: Result) -> str:
    return f"skipped {clean(result['target'])}: {reason(result)}"
