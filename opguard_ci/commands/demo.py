"""``opguard demo``: builds a small training project with a history, and finds the commit that changed its numbers."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.commands import Result
from opguard_ci.commands.options import at_least
from opguard_ci.commands.run import refuse_used_folder
from opguard_ci.report.bisect import render_bisect
from opguard_ci.report.layout import Line, field, paragraph, title
from opguard_ci.report.progress import steps_shown

if TYPE_CHECKING:
    from opguard_ci.demo.history import History

NAME: Final = "demo"
HELP: Final = "build a small git history, change its numbers in one commit, and find that commit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="picks the change: 0, 1, 2, … go through all kinds"
    )
    parser.add_argument(
        "--keep", metavar="DIR", help="where the history goes (default: a folder among temporary files)"
    )


def run(args: argparse.Namespace) -> Result:
    """Check the last commit against the first, then bisect; 0 only if commit and operator are the planted ones."""
    from opguard_ci.bisect.driver import BisectOptions, bisect
    from opguard_ci.demo.changes import TARGET
    from opguard_ci.demo.history import build
    from opguard_ci.guard import Project, check
    from opguard_ci.reference import Wanted
    from opguard_ci.worker.places import Job

    if args.keep is not None:
        refuse_used_folder(args.keep)
        folder = Path(args.keep).absolute()
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="opguard-demo-"))
    with steps_shown() as progress:
        progress("building a git history")
        history = build(folder, args.seed)
        with Project(folder) as project:
            job = Job(TARGET, str(folder))
            progress("checking the last commit against the first")
            checked = check(project, job, Wanted(commit=history.first))
            document = bisect(project, job, history.first, "HEAD", BisectOptions(progress=progress))
    found = is_found(history, document) and checked.verdict == "diverged"
    document["repository"] = str(folder)
    document["planted"] = {"commit": history.planted, "op": history.change.op, "kind": history.change.kind}
    lines = [*_introduction(history), *_checked(history, checked.document), *render_bisect(document)]
    return Result(document, (*lines, *_conclusion(history, found, args.seed + 1)), 0 if found else 1)


def is_found(history: History, document: dict[str, Any]) -> bool:
    """Whether a bisection names the planted commit and an operator that its change reaches first."""
    named = document.get("divergence") or {}
    wanted = {op for op in (history.change.op, history.change.partner) if op}
    return document["first_bad"] == history.planted and bool(wanted & {named.get("op"), named.get("computes")})


def _introduction(history: History) -> list[Line]:
    return [
        *title(f"A history of {history.num_commits} commits, one of which changes the numbers"),
        *field("folder", str(history.folder)),
        *field("planted", f"{history.change.kind} in {history.change.file}, commit {history.planted[:12]}"),
        Line(""),
    ]


def _checked(history: History, document: dict[str, Any]) -> list[Line]:
    first = document.get("first_divergence") or {}
    seen = f"{document['verdict']} at {first['op']} in step {first['step']}" if first else str(document["verdict"])
    return [
        Line(f"$ opguard check train.py:train --reference {history.first[:12]}", "title"),
        *paragraph(seen),
        Line(""),
        Line(f"$ opguard bisect --good {history.first[:12]} --bad HEAD train.py:train", "title"),
    ]


def _program() -> str:
    """What to type: after ``make demo`` the program is in an environment that no shell has activated."""
    beside = Path(sys.executable).with_name("opguard")
    return "opguard" if shutil.which("opguard") or not beside.exists() else shlex.quote(str(beside))


def _conclusion(history: History, found: bool, following: int) -> list[Line]:
    wanted = " or ".join(op for op in (history.change.op, history.change.partner) if op)
    said = f"commit {history.planted[:12]} with {wanted} had to be named, and {'is' if found else 'is not'}"
    return [
        *title("Demo"),
        *paragraph(said, style="good" if found else "bad"),
        *field("try", f"cd {history.folder}"),
        *field("", f"{_program()} history {history.first[:12]}..HEAD train.py:train"),
        *field("", f"git show {history.planted[:12]}"),
        *field("", f"{_program()} demo --seed {following}"),
    ]
