"""The options of verbs that take several targets, or the project's recipes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_ci.commands.options import add_ranks_option, seconds
from opguard_ci.recipe import LEVELS, PROFILES

if TYPE_CHECKING:
    from opguard_ci.guard import Project
    from opguard_ci.worker.places import Job


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add TARGET… and how they are run."""
    parser.add_argument(
        "target", nargs="*", metavar="TARGET", help="what to run; default: recipes of [tool.opguard] in pyproject.toml"
    )
    add_golden_option(parser)
    parser.add_argument("--profile", choices=PROFILES, help="default: the recipe's own, then the project's")
    parser.add_argument("--level", choices=LEVELS, help="default: the recipe's own, then the project's")
    add_ranks_option(parser)
    parser.add_argument("--timeout", type=seconds, metavar="S", help="end each run after S seconds")


def add_golden_option(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the goldens."""
    parser.add_argument("--golden", metavar="DIR", help="folder of the goldens; default: the project's, golden/")


def wanted_jobs(args: argparse.Namespace, project: Project) -> list[Job]:
    """The jobs that the options describe."""
    from opguard_ci.jobs import Asked, jobs_of

    window = getattr(args, "from_step", None), getattr(args, "to_step", None)  # a golden has no window
    asked = Asked(args.profile, args.level, args.timeout, args.target_arguments, args.ranks, *window)
    return jobs_of(project, args.target, str(Path.cwd()), asked)
