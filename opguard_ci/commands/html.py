"""The option ``--html`` of the verbs that compare: draws the two runs and writes the page."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opguard_ci.errors import OpguardError, UsageError


def add_html_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--html FILE``."""
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML file, for reading from disk")


def refuse_unwritable(file: str | None) -> None:
    """Say before anything runs that a report has no folder to go to."""
    if file is not None and not Path(file).absolute().parent.is_dir():
        raise UsageError("report-unwritable", f"The report {file} cannot be written: its folder does not exist.")


def picture_of(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the page draws of the two traces that a comparison names; None where they cannot be read."""
    from opguard_ci.compare.picture import picture
    from opguard_ci.trace.reader import read_trace

    named = [(document.get(side) or {}).get("trace") for side in ("reference", "candidate")]
    try:
        traces = [read_trace(path) for path in named if path is not None]
        if len(traces) < 2:
            return None
        try:
            return picture(traces[0], traces[1], document.get("first_divergence"))
        except UsageError:  # a golden whose events are elsewhere: its manifest tells the steps
            return picture(traces[0], traces[1], None)
    except OpguardError:
        return None


def write_html(file: str, text: str) -> None:
    """Write a page. ``UsageError("report-unwritable")`` if that cannot be done."""
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("report-unwritable", f"The report {file} cannot be written: {error.strerror}.") from error
