"""``opguard prune``: removes goldens and events that nothing names any more; only says which unless told to."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final

from opguard_ci.commands import Result
from opguard_ci.commands.targets import add_golden_option
from opguard_ci.report.golden import render_pruned

NAME: Final = "prune"
HELP: Final = "list (and with --delete remove) goldens of recipes that are gone, and events that no golden names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    add_golden_option(parser)
    parser.add_argument(
        "--key", action="append", default=[], metavar="KEY", help="also the goldens of this environment key"
    )
    parser.add_argument("--delete", action="store_true", help="remove what is listed")


def run(args: argparse.Namespace) -> Result:
    """Find what can go, and remove it if that is asked for."""
    from opguard_ci.guard import Project
    from opguard_ci.jobs import Asked, jobs_of
    from opguard_ci.store.recipes import recipe_id

    with Project(Path.cwd(), golden=args.golden) as project:
        root = str(project.root)
        live = None
        if project.config.recipes:
            live = {recipe_id(job.target, job.cwd, root) for job in jobs_of(project, (), root, Asked())}
        files = project.goldens.prunable(live, args.key)
        entries = [
            {"path": os.path.relpath(file, root), "bytes": file.stat().st_size, "why": why} for file, why in files
        ]
        if args.delete:
            project.goldens.remove([file for file, _ in files])
    document: dict[str, Any] = {"schema": 1, "verdict": "ok", "deleted": args.delete, "files": entries}
    return Result(document, render_pruned(document), 0)
