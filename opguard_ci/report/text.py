"""A verdict as text for the terminal, from the JSON object of a verb alone. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.advice import next_steps
from opguard_ci.report.allowances import not_judged, within_tolerance
from opguard_ci.report.attribution import attribution_lines
from opguard_ci.report.clean import clean, clean_lines
from opguard_ci.report.coverage import coverage_line
from opguard_ci.report.divergence import divergence_block, place, step_name
from opguard_ci.report.layout import Line, count, field, items, join_words, paragraph, title
from opguard_ci.report.passing import passing_lines
from opguard_ci.report.repeats import diagnosis_lines, hardware_headline, hardware_lines
from opguard_ci.report.words import VERDICTS

MAX_BLOCKS: Final = 5
MAX_NAMES: Final = 8

_STYLES: Final = {
    "identical": "good",
    "equivalent": "good",
    "ok": "good",
    "findings": "warn",
    "environment": "warn",
    "no-reference": "warn",
}


def render(document: Mapping[str, Any]) -> tuple[Line, ...]:
    """Lay out one compare, replay or run object; every name and source line in it is made safe for a terminal."""
    lines = [*_headline(document), *_traceback(document), *_sides(document)]
    first = document.get("first_divergence")
    if first:
        lines += title("First divergence")
        lines += divergence_block(first)
    lines += attribution_lines(document)
    lines += hardware_lines(document.get("hardware"))
    lines += _more(document.get("unstable", ()), "Also unstable")
    lines += diagnosis_lines(document.get("diagnosis", ()))
    findings = document.get("findings", ())
    lines += _more(findings, f"Findings of the single run ({len(findings)})")
    lines += _contract(document.get("contract", ()))
    lines += passing_lines(document.get("transient", ()))
    lines += _facts(document)
    if notes := document.get("notes"):
        lines += title("Notes")
        lines += items(clean(note) for note in notes)
    if commands := next_steps(document):
        lines += title("Next")
        width = max(len(command) for command, _ in commands)
        lines += [Line(f"  {command.ljust(width)}  # {purpose}") for command, purpose in commands]
    return tuple(lines)


def error_lines(document: Mapping[str, Any]) -> tuple[Line, ...]:
    """Lay out an error object: the user's traceback, if there is one, and one sentence."""
    error = document["error"]
    lines = [Line(line, "dim") for line in clean_lines(error.get("traceback") or "")]
    return (*lines, Line(f"opguard: {_sentence(error)}", "bad"))


def _headline(document: Mapping[str, Any]) -> list[Line]:
    verdict, error = clean(document["verdict"]), document.get("error")
    first = document.get("first_divergence")
    if error:
        said = _sentence(error)
    elif hardware := hardware_headline(document):
        said = hardware
    elif first:
        said = f"{place(first)}: {clean(first.get('cause'))}"
    elif allowed := [text for text in (within_tolerance(document), not_judged(document)) if text]:
        return paragraph(f"{verdict} {'; '.join(allowed)}", indent="", style="warn")
    else:
        said = VERDICTS.get(verdict, "")
    return paragraph(f"{verdict}: {said}" if said else verdict, indent="", style=_STYLES.get(verdict, "bad"))


def _sentence(error: Mapping[str, Any]) -> str:
    return f"{clean(error['message'], 2000)} [{clean(error['slug'])}]"


def _traceback(document: Mapping[str, Any]) -> list[Line]:
    lines = clean_lines((document.get("error") or {}).get("traceback") or "")
    return [Line(""), *(Line(f"  {line}", "dim") for line in lines)] if lines else []


def _sides(document: Mapping[str, Any]) -> list[Line]:
    reference, candidate = document.get("reference"), document.get("candidate")
    lines = [Line("")]
    for name in ("target", "trace", "profile", "level", "environment", "steps", "runs"):
        if document.get(name) is not None:
            lines += field(name, clean(document[name]))
    if reference and candidate and any((*reference.values(), *candidate.values())):
        same = reference.get("environment") == candidate.get("environment")
        lines += field("reference", _side(reference))
        lines += field("candidate", _side(candidate) + (" (the same)" if same and candidate.get("environment") else ""))
    return lines if len(lines) > 1 else []


def _side(side: Mapping[str, Any]) -> str:
    parts = [f"run {clean(side['run'])}"] if side.get("run") else []
    if side.get("argv") is not None:
        parts.append(f"arguments {clean(shlex.join(side['argv'])) or 'none'}")
    if path := side.get("trace"):
        parts.append(clean(path))
    parts.append(f"commit {_commit(side['commit'])}" if side.get("commit") else "no commit")
    if key := side.get("environment"):
        parts.append(f"environment {clean(key)[:12]}")
    return ", ".join(parts)


def _commit(commit: object) -> str:
    name, plus, dirty = clean(commit).partition("+")
    return name[:12] + plus + dirty


def _more(others: Sequence[Mapping[str, Any]], heading: str) -> list[Line]:
    if not others:
        return []
    lines = title(heading)
    for number, other in enumerate(others[:MAX_BLOCKS]):
        lines += [Line("")] * bool(number)
        lines += divergence_block(other)
    if len(others) > MAX_BLOCKS:
        lines += paragraph(f"and {len(others) - MAX_BLOCKS} more")
    return lines


def _contract(contract: Sequence[Mapping[str, Any]]) -> list[Line]:
    different = [value for value in contract if not value.get("equal")]
    if not different:
        return []
    step = min(int(value["step"]) for value in different)
    names = list(dict.fromkeys(clean(value["name"], 80) for value in different if value["step"] == step))
    shown = join_words(names) if len(names) <= MAX_NAMES else ", ".join(names[:MAX_NAMES])
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    later = len({clean(value["name"]) for value in different}) - len(names)
    lines = title("Contract")
    lines += paragraph(f"first different in {step_name(step)}: {shown}{more}")
    if later:
        lines += paragraph(f"later also {count(later, 'other value')}")
    return lines


def _facts(document: Mapping[str, Any]) -> list[Line]:
    lines: list[Line] = []
    structure = document.get("structure") or {}
    if any(structure.values()):
        counts = [f"{count(number, 'operator')} {kind}" for kind, number in structure.items() if number]
        lines += field("structure", join_words([clean(text) for text in counts]))
    if coverage := document.get("coverage"):
        lines += field("coverage", coverage_line(coverage), style="warn" if coverage.get("unseen") else "")
    return [Line(""), *lines] if lines else []
