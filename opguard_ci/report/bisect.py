"""A bisection or a history as terminal text. Pure: works from the JSON object."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.clean import clean
from opguard_ci.report.divergence import divergence_block
from opguard_ci.report.layout import LABEL, WIDTH, Line, count, field, items, paragraph, shorten, table, title

_MAX_ROWS: Final = 20
_SHORT: Final = 12
_MAX_LINES: Final = 12
_KINDS: Final = {
    "added": "new file",
    "deleted": "file removed",
    "mode": "mode changed",
    "binary": "binary file changed",
    "link": "link changed",
    "submodule": "submodule moved",
}
HEADLINES: Final = {
    "found": "found: the commit that changed the numbers",
    "candidates": "candidates: commits that cannot be run leave more than one",
    "nothing": "nothing found",
}


def render_bisect(document: Mapping[str, Any]) -> tuple[Line, ...]:
    """Lay out what a bisection found."""
    lines = title(HEADLINES.get(str(document["verdict"]), clean(document["verdict"])))
    subjects = document.get("subjects") or {}
    if document.get("first_bad"):
        lines += field("commit", _named(document["first_bad"], subjects))
    elif document.get("candidates"):
        for number, commit in enumerate(document["candidates"][:_MAX_ROWS]):
            lines += field("one of" if number == 0 else "", _named(commit, subjects))
    lines += field("target", clean(document.get("target")))
    lines += field("between", f"{_short(document.get('good'))} (good) and {_short(document.get('bad'))} (bad)")
    lines += field("runs", f"{count(document['runs'], 'run')} made, {document['cached']} known from before")
    if document.get("divergence"):
        lines += divergence_block(document["divergence"])
    lines += _hunks(document)
    lines += _transitions(document.get("transitions") or (), subjects)
    lines += _skipped(document.get("skipped") or ())
    lines += items([clean(note) for note in document.get("notes") or ()])
    if document.get("first_bad"):
        lines += field("next", f"git show {_short(document['first_bad'])}")
    if document.get("reproducer"):
        lines += field("", f"python {shlex.quote(clean(document['reproducer']))}/repro.py")
    return tuple(lines)


def render_history(document: Mapping[str, Any]) -> tuple[Line, ...]:
    """Lay out the class of each commit."""
    commits = document["commits"]
    num_classes = len({row["class"] for row in commits} - {None})
    lines = title(
        f"{count(len(commits), 'commit')}, {count(num_classes, 'class')} of numerics".replace("classs", "classes")
    )
    rows = [["class", "commit", ""]]
    for row in commits:
        what = clean(row["subject"]) if row["class"] else f"{clean(row['subject'])} ({clean(row.get('reason', ''))})"
        rows.append([row["class"] or "-", _short(row["commit"]), shorten(what, 100)])
    lines += table(rows, indent=2, head=True)
    lines += field("runs", f"{count(document['runs'], 'run')} made, {document['cached']} known from before")
    lines += items([clean(note) for note in document.get("notes") or ()])
    return tuple(lines)


def _hunks(document: Mapping[str, Any]) -> list[Line]:
    hunks = document.get("hunks") or ()
    lines: list[Line] = []
    for number, hunk in enumerate(hunks[:_MAX_ROWS]):
        lines += field("hunks" if number == 0 else "", hunk_name(hunk), style="mark" if hunk["frame"] else "")
        shown = [" " * (LABEL + 2) + shorten(clean(line, 200), WIDTH - LABEL - 2) for line in hunk["text"][:_MAX_LINES]]
        left_out = len(hunk["text"]) - len(shown) + hunk["more"]
        lines += [Line(line, "dim") for line in shown + [" " * (LABEL + 2) + f"… {left_out} more"] * (left_out > 0)]
    if len(hunks) > _MAX_ROWS:
        lines += field("", f"… {len(hunks) - _MAX_ROWS} more")
    if hunks:
        lines += field("patch", f"{clean(document['patch'], 400)} (these alone, for git apply on the parent)")
    return lines


def hunk_name(hunk: Mapping[str, Any]) -> str:
    """A piece of a change by file and lines, and what else is to be known of it."""
    name = clean(hunk["file"])
    if hunk["kind"] == "hunk":
        first, last = hunk["lines"]
        name += f":{first}" if first == last else f":{first}-{last}"
    elif hunk["kind"] == "renamed":
        name = f"{clean(hunk['old_file'])} renamed to {name}"
    else:
        name += f" ({_KINDS[hunk['kind']]})"
    if hunk["frame"]:
        name = f"> {name}, holds a line of the divergence"
    return name if hunk["proven"] else f"{name} (the rest cannot be run without it)"


def _transitions(transitions: Sequence[Mapping[str, Any]], subjects: Mapping[str, str]) -> list[Line]:
    if len(transitions) < 2:
        return []
    lines = paragraph("All changes found:")
    rows = [["", "commit", "declared"]]
    for change in transitions[:_MAX_ROWS]:
        declared = "yes" if change["declared"] else "no"
        rows.append([f"{change['from']} -> {change['to']}", _named(change["commit"], subjects), declared])
    return lines + table(rows, indent=4, head=True)


def _skipped(skipped: Sequence[Mapping[str, Any]]) -> list[Line]:
    lines: list[Line] = []
    for number, entry in enumerate(skipped[:_MAX_ROWS]):
        text = f"{_short(entry['commit'])}: {shorten(clean(entry['reason']), 160)}"
        lines += field("skipped" if number == 0 else "", text)
    return lines


def _named(commit: object, subjects: Mapping[str, str]) -> str:
    subject = clean(subjects.get(str(commit), ""))
    return f"{_short(commit)} {shorten(subject, 70)}".rstrip()


def _short(commit: object) -> str:
    return clean(commit)[:_SHORT]
