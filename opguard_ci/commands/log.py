"""``opguard log``: who blessed the goldens of a target, when, why, and what they replaced."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.targets import add_golden_option
from opguard_ci.report.golden import render_log

NAME: Final = "log"
HELP: Final = "show who blessed the goldens of a target, when and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.add_argument("target", metavar="TARGET", help="the target, as check and bless take it")
    add_golden_option(parser)


def run(args: argparse.Namespace) -> Result:
    """Read the goldens of the target; its file may be gone."""
    from opguard_ci.errors import UsageError
    from opguard_ci.guard import Project
    from opguard_ci.recipe import parse_target
    from opguard_ci.store.recipes import recipe_id, relative_target

    cwd = str(Path.cwd())
    with Project(cwd, golden=args.golden) as project:
        try:
            parse_target(args.target, cwd)
        except UsageError as error:
            if error.slug != "target-not-found":
                raise
        root = str(project.root)
        recipe = recipe_id(args.target, cwd, root)
        goldens = [
            {
                "environment": golden.key,
                "path": os.path.relpath(golden.path, root),
                "profile": golden.trace.manifest["profile"],
                "entries": [asdict(blessing) for blessing in reversed(golden.blessings)],
            }
            for golden in project.goldens.of(recipe)
        ]
    verdict = "ok" if goldens else "no-reference"
    target = relative_target(args.target, cwd, root)
    document: dict[str, Any] = {"schema": 1, "verdict": verdict, "recipe": recipe, "target": target, "goldens": goldens}
    return Result(document, render_log(document), exit_code(verdict))
