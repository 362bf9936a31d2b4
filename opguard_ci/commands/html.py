"""The options ``--html`` and ``--perfetto`` of the verbs that compare: draw the two runs and write the files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_ci.errors import OpguardError, UsageError

if TYPE_CHECKING:
    from opguard_ci.trace.reader import Trace


def add_html_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--html FILE``."""
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML file, for reading from disk")


def add_perfetto_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--perfetto FILE``."""
    parser.add_argument("--perfetto", metavar="FILE", help="write both runs in logical time, for ui.perfetto.dev")


def refuse_unwritable(*files: str | None) -> None:
    """Say before anything runs that a report has no folder to go to."""
    for file in files:
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise UsageError("report-unwritable", f"The report {file} cannot be written: its folder does not exist.")


def picture_of(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the page draws of the two traces that a comparison names; None where they cannot be read."""
    from opguard_ci.compare.picture import picture

    try:
        traces = _traces_of(document)
        if len(traces) < 2:
            return None
        try:
            return picture(traces[0], traces[1], document.get("first_divergence"))
        except UsageError:  # a golden whose events are elsewhere: its manifest tells the steps
            return picture(traces[0], traces[1], None)
    except OpguardError:
        return None


def perfetto_of(document: dict[str, Any]) -> str:
    """The file for Perfetto of the two traces that a comparison names; a note says what it leaves out.

    Raises:
        UsageError: ``nothing-to-draw``: no run was recorded with its operators; or its events are not there.

    """
    from opguard_ci.compare.ranks import OneRank
    from opguard_ci.compare.timeline import timeline
    from opguard_ci.report.perfetto import perfetto

    traces = _traces_of(document)
    if len(traces) < 2 or any(trace.manifest["level"] == "contract" for trace in traces):
        raise UsageError("nothing-to-draw", "--perfetto draws operators: record both sides, at level full or op.")
    first, ranks = document.get("first_divergence"), traces[0].manifest["ranks"]
    pairs = [traces] if ranks == 1 else [[OneRank(trace, rank) for trace in traces] for rank in range(ranks)]
    timelines = [timeline(reference, candidate, first) for reference, candidate in pairs]
    drawn, num_steps = len(timelines[0].steps), timelines[0].num_steps
    if drawn < num_steps:
        document["notes"].append(f"The file for Perfetto holds {drawn} of {num_steps} steps, around the divergence.")
    return perfetto(document, timelines)


def _traces_of(document: Mapping[str, Any]) -> list[Trace]:
    from opguard_ci.trace.reader import read_trace

    named = [(document.get(side) or {}).get("trace") for side in ("reference", "candidate")]
    return [read_trace(path) for path in named if path is not None]


def write_report(file: str, text: str) -> None:
    """Write a file. ``UsageError("report-unwritable")`` if that cannot be done."""
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("report-unwritable", f"The report {file} cannot be written: {error.strerror}.") from error
