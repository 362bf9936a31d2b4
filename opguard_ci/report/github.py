"""A check in GitHub Actions: annotations, the job summary, and commands of others kept from working. Pure.

Formats: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands. Names, source lines and
exceptions come from whoever wrote the code under test, so nothing of them may act as a command or as markup.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any, Final

from opguard_ci.report.check import (
    block,
    coverage,
    failed,
    header,
    headline,
    is_skipped,
    reason,
    reference_name,
    user_line,
)
from opguard_ci.report.clean import clean
from opguard_ci.report.layout import plain

MAX_ANNOTATIONS: Final = 10
"""Annotations of a kind that GitHub shows per step."""
MAX_SUMMARY: Final = 60_000
"""Bytes of a summary. Above 64 KiB it gets hard to read; above 1 MiB GitHub drops all of it."""
_MAX_MESSAGE: Final = 2000
_MAX_ROWS: Final = 50
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,/()")


def error_commands(document: Mapping[str, Any], prefix: str = "", *, strict: bool = False) -> list[str]:
    """At most ten workflow commands, one per failure, on the user's own lines.

    ``prefix``: where the root of the tree lies in the workspace, as ``sub/``.
    """
    found = []
    for result in document["results"]:
        if not failed(result, strict):
            continue
        file, line = user_line(result)
        properties = {"title": f"opguard: {clean(result['target'])}"}
        if file is not None:
            properties |= {"file": prefix + clean(file), "line": str(line)}
        written = ",".join(f"{name}={escape_property(value)}" for name, value in sorted(properties.items()))
        message = headline(result)
        if command := result.get("command"):
            message += f"\n{clean(command, _MAX_MESSAGE)}"
        found.append(f"::error {written}::{escape_data(message[:_MAX_MESSAGE])}")
    if len(found) > MAX_ANNOTATIONS:
        more = len(found) - MAX_ANNOTATIONS + 1
        found[MAX_ANNOTATIONS - 1 :] = [f"::error ::{escape_data(f'{more} more recipes failed; see the job summary.')}"]
    return found


def escape_data(text: str) -> str:
    """The message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """The value of a workflow command's property."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def summary(document: Mapping[str, Any], *, strict: bool = False) -> str:
    """The job summary as Markdown, below 64 KiB: a table of all recipes and a block for each failure."""
    results = document["results"]
    lines = [f"### opguard: {literal(document['verdict'])}", "", literal(header(document)), ""]
    if seen := coverage(document):
        lines += [literal(f"coverage: {seen}"), ""]
    lines += ["| verdict | target | reference | |", "|---|---|---|---|"]
    ordered = sorted(results, key=lambda result: not failed(result, strict))
    for result in ordered[:_MAX_ROWS]:
        cells = [result["verdict"], result["target"], reference_name(result), reason(result)]
        lines.append(f"| {_mark(result, strict)} {' | '.join(literal(clean(cell)) for cell in cells)} |")
    if len(ordered) > _MAX_ROWS:
        lines += ["", f"and {len(ordered) - _MAX_ROWS} more"]
    text = "\n".join(lines) + "\n"
    failures = [result for result in results if failed(result, strict)]
    for number, result in enumerate(failures):
        left = MAX_SUMMARY - len(text.encode())
        details = _details(result, left // (len(failures) - number))
        if len(details.encode()) > left - 100:
            text += f"\n{len(failures) - number} more failures are in the log.\n"
            break
        text += details
    return text


def literal(text: object) -> str:
    """Text that Markdown and HTML show as it is, on one line: everything but letters and digits as a reference."""
    return "".join(letter if letter in _PLAIN else f"&#{ord(letter)};" for letter in clean(text))


def stop_commands(token: str) -> str:
    """The line that keeps what others print from being workflow commands, until ``::token::`` is printed."""
    return f"::stop-commands::{token}"


def resume_commands(token: str) -> str:
    """The line that ends ``stop_commands``."""
    return f"::{token}::"


def _mark(result: Mapping[str, Any], strict: bool) -> str:
    return "➖" if is_skipped(result) else "❌" if failed(result, strict) else "✅"


def _details(result: Mapping[str, Any], limit: int) -> str:
    """A foldable block; what does not fit is cut from the end of its text."""
    lines = plain(block(result)).splitlines()
    shown: list[str] = []
    size = 400
    for line in lines:
        escaped = html.escape(line)
        size += len(escaped.encode()) + 1
        if size > limit:
            shown.append("… the rest is in the log")
            break
        shown.append(escaped)
    body = "\n".join(shown)
    target = literal(clean(result["target"], 100))
    return f"\n<details open><summary>{target}</summary>\n\n<pre>\n{body}\n</pre>\n\n</details>\n"
