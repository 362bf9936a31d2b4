"""Why a target does not repeat itself: what was tried against it, and what speaks for the machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.clean import clean
from opguard_ci.report.layout import Line, field, join_words, paragraph, table, title

_MAX_ODDS: Final = 1000


def diagnosis_lines(diagnosis: Sequence[Mapping[str, Any]]) -> list[Line]:
    """What each switch does, tried alone."""
    if not diagnosis:
        return []
    lines = title("Diagnosis: what was tried, each alone")
    lines += table([[clean(entry["tried"]), _outcome(entry)] for entry in diagnosis], indent=2)
    cures = [clean(entry["tried"]) for entry in diagnosis if entry["outcome"] == "cured"]
    return [*lines, *paragraph(f"What helps: {join_words(cures) or 'nothing of this'}.")]


def _outcome(entry: Mapping[str, Any]) -> str:
    runs, detail = entry["runs"], clean(entry.get("detail") or "", 200)
    match entry["outcome"]:
        case "cured":
            return f"cures it: {runs} runs agree (by luck alone {_odds(entry['luck'])})"
        case "unstable":
            return f"does not: run {runs} differs{f' ({detail})' if detail else ''}"
        case "untestable":
            return f"cannot be tried: {detail}"
        case _:
            return f"not tried: {detail}"


def _odds(luck: float) -> str:
    odds = round(1 / luck) if luck else _MAX_ODDS
    return f"1 time in {odds}" if odds < _MAX_ODDS else f"less than 1 time in {_MAX_ODDS}"


def hardware_lines(hardware: Mapping[str, Any] | None) -> list[Line]:
    """The run that differs alone, and the bits if they were found."""
    if not hardware:
        return []
    lines = title("Suspected hardware" if "bits" in hardware else "One run differs alone")
    lines += field("run", f"{clean(hardware['run'])} of {clean(hardware['runs'])}; all others agree in every digest")
    if "op" in hardware:
        module = f" in {clean(hardware['module'])}" if hardware.get("module") else ""
        where = f"step {clean(hardware['step'])}, {clean(hardware['op'])}{module}, {clean(hardware['tensor'])}"
        lines += field("where", where)
    if "bits" not in hardware:
        return [*lines, *field("bits", clean(hardware.get("detail") or ""))]
    shape = ",".join(map(str, hardware["shape"]))
    elements = join_words([str(element) for element in hardware["elements"]])
    lines += field("element", f"{elements} of {clean(hardware['dtype'])}[{shape}]")
    lines += field("bits", f"{join_words([str(bit) for bit in hardware['bits']])} flipped, counted from the lowest")
    lines += paragraph(
        "Everything else followed from that. Memory or a core of this machine may be faulty, or something outside of "
        "torch wrote there: run again on another machine, and test this one's memory."
    )
    return lines


def hardware_headline(document: Mapping[str, Any]) -> str:
    """The suspicion in a few words; empty where there is none."""
    hardware = document.get("hardware") or {}
    if "bits" not in hardware:
        return ""
    bits = "one bit" if len(hardware["bits"]) == 1 else f"{len(hardware['bits'])} bits"
    return f"suspected hardware: {bits} of {clean(hardware['tensor'])} in run {clean(hardware['run'])} alone"
