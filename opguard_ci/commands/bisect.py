"""``opguard bisect``: the commit that changed the numbers, with the operator and the source line."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

from opguard_ci.capture.window import require_window
from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.commits import add_commit_options, commit_job
from opguard_ci.commands.html import add_html_option, picture_of, refuse_unwritable, write_report
from opguard_ci.commands.options import add_window_options, at_least
from opguard_ci.commands.run import refuse_used_folder
from opguard_ci.report.bisect import render_bisect
from opguard_ci.report.progress import steps_shown

NAME: Final = "bisect"
HELP: Final = "find the commit that changed what a target computes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    add_commit_options(parser)
    parser.add_argument("--good", metavar="A", help="a commit that computes what it should")
    parser.add_argument("--bad", metavar="B", help="a later commit that computes something else")
    parser.add_argument("--all", action="store_true", help="find every change between neighbours that differ")
    parser.add_argument(
        "--exhaustive", action="store_true", help="run every commit: also finds changes taken back later"
    )
    parser.add_argument(
        "--hunks", action="store_true", help="name the smallest set of the commit's hunks that gives its numbers"
    )
    parser.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="commits tried at a time (default: 1)")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted search of the same ends")
    add_window_options(parser)
    parser.add_argument("--repro", metavar="DIR", help="leave a script in DIR that repeats the operator of the change")
    add_html_option(parser)
    parser.add_argument("--replay", metavar="FILE", help="decide from a search's journal alone; runs nothing")


def run(args: argparse.Namespace) -> Result:
    """Search, and report the commit and what it changed."""
    from opguard_ci.bisect.driver import BisectOptions, bisect, replay
    from opguard_ci.bisect.search import Mode
    from opguard_ci.errors import UsageError
    from opguard_ci.guard import Project
    from opguard_ci.report.html import bisect_page

    if args.repro is not None:
        refuse_used_folder(args.repro)
    refuse_unwritable(args.html)
    require_window(args.from_step, args.to_step, "auto")
    with Project(Path.cwd()) as project, steps_shown() as progress:
        if args.replay is not None:
            if args.hunks:
                raise UsageError(
                    "replay-hunks", "--replay runs nothing, and hunks have to be run: leave one of them out."
                )
            for option in ("--repro", "--from-step", "--to-step"):
                if getattr(args, option[2:].replace("-", "_")) is not None:
                    raise UsageError("usage", f"--replay runs nothing, so {option} has no run: leave one of them out.")
            document = replay(project, Path(args.replay))
        else:
            if args.good is None or args.bad is None:
                raise UsageError("missing-ends", "A search needs two ends: --good A and --bad B.")
            mode: Mode = "exhaustive" if args.exhaustive else "all" if args.all else "first"
            options = BisectOptions(mode, args.jobs, args.resume, args.hunks, progress, args.repro)
            job = replace(commit_job(args, project), from_step=args.from_step, to_step=args.to_step)
            document = bisect(project, job, args.good, args.bad, options)
        if args.html is not None:
            write_report(args.html, bisect_page(document, picture_of(document)))
    return Result(document, render_bisect(document), exit_code(document["verdict"]))
