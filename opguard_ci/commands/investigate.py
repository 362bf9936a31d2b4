"""``opguard investigate``: two commands that should train alike and do not; one report of where and why."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.options import add_run_settings
from opguard_ci.errors import UsageError
from opguard_ci.report.layout import Line
from opguard_ci.report.progress import steps_shown

NAME: Final = "investigate"
HELP: Final = "run two commands, say where they part and why, and how to validate that"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    for name in ("a", "b"):
        side = parser.add_argument_group(f"side {name.upper()}")
        side.add_argument(
            f"--{name}", required=True, metavar="CMD", help="a target and its arguments, as in a shell; quote it"
        )
        side.add_argument(f"--python-{name}", metavar="P", help="the Python that runs it (default: this one)")
        side.add_argument(
            f"--env-{name}", action="append", default=[], metavar="K=V", help="a variable to run it under; repeatable"
        )
    add_run_settings(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the report, Markdown, to FILE as well")
    parser.add_argument("--keep", metavar="DIR", help="keep the traces in DIR (default: they are removed)")


def run(args: argparse.Namespace) -> Result:
    """Investigate, and write the report."""
    from opguard_ci.commands.run import refuse_used_folder
    from opguard_ci.evidence.investigation import Investigation, parse_command
    from opguard_ci.report.investigation import investigation_report
    from opguard_ci.worker.request import RunRequest

    a, b = (
        parse_command(getattr(args, name), getattr(args, f"python_{name}"), _variables(getattr(args, f"env_{name}")))
        for name in ("a", "b")
    )
    request = RunRequest(
        target="", cwd=str(Path.cwd()), output="", level=args.level or "auto", profile=args.profile, steps=args.steps,
        allow_unseen=args.allow_unseen, timeout=args.timeout or 600.0,
    )  # fmt: skip
    with ExitStack() as stack:
        if args.keep is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="opguard-investigate-"))
        else:
            refuse_used_folder(args.keep)
            folder = args.keep
        progress = stack.enter_context(steps_shown())
        document = Investigation(request, Path(folder).absolute(), progress).run(a, b)
    if args.keep is None:
        for side in ("reference", "candidate"):
            document.get(side, {}).pop("trace", None)
    report = investigation_report(document)
    if args.output is not None:
        _write(Path(args.output), report)
    document["report"] = args.output
    text = tuple(Line(line) for line in report.splitlines())
    return Result(document, text, exit_code(document["verdict"]))


def _variables(given: list[str]) -> dict[str, str]:
    found: dict[str, Any] = {}
    for text in given:
        name, equals, found[name] = text.partition("=")
        if not equals or not name:
            raise UsageError("usage", f"{text!r} is no variable: write NAME=VALUE.")
    return found


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("report-unwritable", f"The report {file} cannot be written: {error.strerror}.") from error
