"""What ``bless``, ``log`` and ``prune`` have to say, as terminal text. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from opguard_ci.report.check import block
from opguard_ci.report.clean import clean
from opguard_ci.report.layout import Line, count, field, paragraph, table, title

_SHORT: Final = 12
_DIGEST: Final = 8


def render_blessed(document: Mapping[str, Any]) -> tuple[Line, ...]:
    """Lay out what was blessed, with the lines for the commit message; or what kept a target from it."""
    results = document["results"]
    if document["verdict"] != "ok":
        lines = paragraph("Nothing was blessed: a golden must repeat itself.", indent="", style="bad")
        for each in results:
            lines += [Line(""), *block(each)]
        return tuple(lines)
    lines = []
    for each in results:
        lines += title(clean(each["target"]))[1:] + field("golden", clean(each["path"]))
        lines += field("commit", f"{clean(each['commit'])[:_SHORT]}, profile {clean(each['profile'])}")
        lines += field("numerics", _change(each))
        if not each["committed"]:
            lines += field("events", f"{count(each['bytes'], 'byte')}: too large for the repository, kept beside it")
        lines += [Line("")]
    changed = [each for each in results if each["old"] is not None and each["old"] != each["new"]]
    folders = sorted({clean(each["path"]).rpartition("/")[0].rpartition("/")[0] for each in results})
    lines += paragraph("Commit the goldens, and declare changes by trailers:" if changed else "Commit the goldens:")
    lines += [Line(f"  git add {shlex.quote(folder)}") for folder in folders]
    lines += [Line(f"  Opguard-Rebaseline: {clean(each['recipe'])}", "mark") for each in changed]
    return tuple(lines)


def render_log(document: Mapping[str, Any]) -> tuple[Line, ...]:
    """Lay out the goldens of a target, each with its blessings, the newest first."""
    if not document["goldens"]:
        return tuple(paragraph(f"no-reference: {clean(document['target'])} has no golden", indent="", style="warn"))
    lines = [Line(f"{clean(document['target'])} ({clean(document['recipe'])})", "title")]
    for golden in document["goldens"]:
        lines += [Line(""), Line(f"environment {clean(golden['environment'])}, profile {clean(golden['profile'])}")]
        rows = [["when", "commit", "numerics", "who", "why"]]
        for entry in golden["entries"]:
            when = entry["when"][:16].replace("T", " ")  # to the minute, in UTC
            cells = [when, str(entry["commit"])[:_SHORT], _change(entry), entry["who"], entry["why"]]
            rows.append([clean(cell) for cell in cells])
        lines += table(rows, indent=2, head=True)
    return tuple(lines)


def render_pruned(document: Mapping[str, Any]) -> tuple[Line, ...]:
    """Lay out what can be removed, or was."""
    files = document["files"]
    if not files:
        return tuple(paragraph("nothing to prune", indent=""))
    done = "removed" if document["deleted"] else "can be removed (with --delete)"
    lines = paragraph(f"{count(len(files), 'file')} {done}:", indent="")
    lines += table([[clean(file["path"]), f"{file['bytes']:,}", clean(file["why"])] for file in files], indent=2)
    return tuple(lines)


def _change(entry: Mapping[str, Any]) -> str:
    new, old = clean(entry["new"])[:_DIGEST], entry["old"]
    if old is None:
        return f"{new} (new)"
    return f"{new} (unchanged)" if old == entry["new"] else f"{clean(old)[:_DIGEST]} -> {new}"
