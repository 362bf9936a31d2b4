"""``opguard bless``: keeps what targets compute now as their goldens."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.targets import add_target_options, wanted_jobs
from opguard_ci.report.golden import render_blessed
from opguard_ci.report.progress import steps_shown

NAME: Final = "bless"
HELP: Final = "record what targets compute at this commit as their goldens, with a reason"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    add_target_options(parser)
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why these numbers are right")
    parser.add_argument("--allow-nonfinite", action="store_true", help="accept NaN and infinities in the contract")


def run(args: argparse.Namespace) -> Result:
    """Run every target on two servers and write its golden."""
    from opguard_ci.bless import BlessOptions, bless
    from opguard_ci.guard import Project

    with Project(Path.cwd(), golden=args.golden) as project, steps_shown() as progress:
        options = BlessOptions(args.reason, args.allow_nonfinite, progress)
        results = bless(project, wanted_jobs(args, project), options)
    verdict = "unstable" if any(each["verdict"] == "unstable" for each in results) else "ok"
    document: dict[str, Any] = {"schema": 1, "verdict": verdict, "results": results}
    return Result(document, render_blessed(document), exit_code(verdict))
