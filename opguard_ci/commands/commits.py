"""The options that verbs share which run a target at many commits."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_ci.commands.options import add_ranks_option, at_least, seconds
from opguard_ci.determinism.profile import PROFILES

if TYPE_CHECKING:
    from opguard_ci.guard import Project
    from opguard_ci.worker.places import Job


def add_commit_options(parser: argparse.ArgumentParser) -> None:
    """Add TARGET and how it is run at each commit."""
    parser.add_argument("target", nargs="?", metavar="TARGET", help="what to run; default: the project's only recipe")
    parser.add_argument("--profile", choices=PROFILES, help="default: the target's own")
    parser.add_argument("--steps", type=at_least(1), metavar="N", help="end each run after N steps")
    add_ranks_option(parser)
    parser.add_argument("--timeout", type=seconds, metavar="S", help="end each run after S seconds (default: 600)")
    parser.add_argument(
        "--pin",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="files laid over every commit as they are now",
    )


def commit_job(args: argparse.Namespace, project: Project) -> Job:
    """The job that the options describe."""
    from opguard_ci.errors import UsageError
    from opguard_ci.recipe import parse_target
    from opguard_ci.worker.places import Job

    cwd, target, pins = str(Path.cwd()), args.target, tuple(args.pin)
    if target is None and len(pins) > 1:  # `--pin FILE… TARGET`: the option took the target too
        *files, target = pins
        pins = tuple(files)
    if target is None:
        if len(project.config.recipes) != 1:
            raise UsageError("no-targets", "Name a TARGET, or list one recipe in [tool.opguard].")
        cwd, target = str(project.root), project.config.recipes[0]
    try:
        parse_target(target, cwd)
    except UsageError as error:
        if error.slug != "target-not-found":  # commits may have what the working tree lacks
            raise
    return Job(
        target,
        cwd,
        argv=tuple(args.target_arguments),
        profile=args.profile,
        steps=args.steps,
        timeout=args.timeout,
        pins=pins,
        ranks=args.ranks,
    )
