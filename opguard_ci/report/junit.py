"""JUnit XML of a check, by the package junit-xml behind an adapter: whatever the texts hold, the XML can be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from opguard_ci.report.check import block, failed, headline, is_skipped, user_line
from opguard_ci.report.coverage import coverage_line
from opguard_ci.report.layout import plain

MAX_TEXT: Final = 1 << 16
"""Characters of one text; readers of reports choke on megabytes, and the middle says least."""
MAX_NAME: Final = 1 << 10

_FORBIDDEN: Final = re.compile("[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write, what it advises against, and CR, which a reader may turn into LF."""
_NONCHARACTERS: Final = re.compile(
    "[" + "".join(chr(plane << 16 | low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF)) + "]"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One test case. ``outcome`` other than ``passed`` comes with ``message`` (a line) and ``text``."""

    name: str
    outcome: Literal["passed", "failed", "error", "skipped"] = "passed"
    message: str = ""
    text: str = ""
    kind: str = ""
    classname: str = "opguard"
    file: str | None = None
    line: int | None = None
    output: str = ""
    """What the case printed, as far as readers of the report are concerned: what was seen of it."""


def cases_of(document: Mapping[str, Any], *, strict: bool = False) -> list[Case]:
    """One case per result of a check."""
    return [_case(result, strict) for result in document["results"]]


def junit_xml(cases: Iterable[Case], suite: str = "opguard") -> str:
    """The report as text, to be written as UTF-8. Names are made unique; what failed never counts as passed."""
    from junit_xml import TestCase, TestSuite, to_xml_report_string

    used: set[tuple[str, str]] = set()
    written = []
    for case in cases:
        classname = readable(case.classname, MAX_NAME)
        name = _unused(readable(case.name, MAX_NAME) or "unnamed", classname, used)
        used.add((classname, name))
        file = case.file and readable(case.file, MAX_NAME)
        made = TestCase(name, classname=classname, file=file, line=case.line, stdout=readable(case.output) or None)
        kind = readable(case.kind, MAX_NAME) or case.outcome
        message = readable(case.message, MAX_NAME) or f"{case.outcome} without a message"
        text = readable(case.text)
        if case.outcome == "failed":
            made.add_failure_info(message, text, kind)
        elif case.outcome == "error":
            made.add_error_info(message, text, kind)
        elif case.outcome == "skipped":
            made.add_skipped_info(message, text)
        written.append(made)
    report: str = to_xml_report_string([TestSuite(readable(suite, MAX_NAME), written)], prettyprint=False)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{report}\n'


def readable(text: str, limit: int = MAX_TEXT) -> str:
    """The text in characters that XML can carry, others replaced by U+FFFD; the middle of a huge one is left out."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return _NONCHARACTERS.sub("\ufffd", _FORBIDDEN.sub("\ufffd", text))


def _unused(name: str, classname: str, used: set[tuple[str, str]]) -> str:
    number, free = 1, name
    while (classname, free) in used:
        number += 1
        free = f"{name} ({number})"
    return free


def _case(result: Mapping[str, Any], strict: bool) -> Case:
    file, line = user_line(result)
    outcome: Literal["passed", "failed", "error", "skipped"] = "passed"
    if is_skipped(result):
        outcome = "skipped"
    elif failed(result, strict):
        outcome = "error" if _is_error(result) else "failed"
    text = "" if outcome == "passed" else plain(block(result))
    seen = f"coverage: {coverage_line(result['coverage'])}" if result.get("coverage") else ""
    kind, target = str(result["verdict"]), str(result["target"])
    return Case(target, outcome, headline(result), text, kind, file=file, line=line, output=seen)


def _is_error(result: Mapping[str, Any]) -> bool:
    """A reference that cannot be run, and a defect of ours, say nothing about the candidate."""
    return result["verdict"] == "error" or (result.get("error") or {}).get("side") == "reference"
