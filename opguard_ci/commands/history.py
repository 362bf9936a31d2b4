"""``opguard history``: which commits of a range compute the same."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from opguard_ci.commands import Result
from opguard_ci.commands.commits import add_commit_options, commit_job
from opguard_ci.commands.options import at_least
from opguard_ci.report.bisect import render_history
from opguard_ci.report.progress import steps_shown

NAME: Final = "history"
HELP: Final = "show the class of every commit of a range: the same letter computed the same"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.add_argument("range", metavar="A..B", help="from A (which is shown too) to B")
    add_commit_options(parser)
    parser.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="commits tried at a time (default: 1)")


def run(args: argparse.Namespace) -> Result:
    """Run every commit of the range and tell them apart."""
    from opguard_ci.bisect.history import history
    from opguard_ci.errors import UsageError
    from opguard_ci.guard import Project

    first, dots, last = args.range.partition("..")
    if not dots or not first or last.startswith("."):
        raise UsageError("bad-range", f"{args.range!r} is no range: write A..B.")
    with Project(Path.cwd()) as project, steps_shown() as progress:
        document: dict[str, Any] = history(
            project, commit_job(args, project), first, last or "HEAD", args.jobs, progress
        )
    return Result(document, render_history(document), 0)
