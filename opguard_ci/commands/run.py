"""``opguard run``: one run of a target under capture, and what the run alone gives away."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.options import add_run_options, run_request
from opguard_ci.errors import UsageError
from opguard_ci.report.text import render

if TYPE_CHECKING:
    from opguard_ci.worker.request import RunResult

NAME: Final = "run"
HELP: Final = "run a target once under capture and write its trace"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    add_run_options(parser)
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to create for the trace")
    parser.add_argument("--in-process", action="store_true", help="run in this process, for a debugger")


def run(args: argparse.Namespace) -> Result:
    """Run the target, and report findings, coverage and how it ended."""
    refuse_used_folder(args.output)
    from opguard_ci.worker import client

    request = run_request(args, args.output)
    result = client.run_in_process(request) if args.in_process else client.run(request)
    document = run_document(args.target, args.output, result)
    return Result(document, render(document), exit_code(document["verdict"]))


def run_document(target: str, folder: str, result: RunResult) -> dict[str, Any]:
    """The JSON object of one run."""
    outcome, manifest = result.outcome, _manifest(folder)
    document: dict[str, Any] = {
        "schema": 1,
        "verdict": _verdict(result),
        "target": target,
        "trace": folder,
        "commit": manifest.get("commit"),
        "environment": (manifest.get("environment") or {}).get("key"),
        "profile": manifest.get("profile"),
        "level": manifest.get("level"),
        "steps": outcome.get("steps", len(manifest.get("steps", ()))),
        "seconds": round(result.seconds, 3),
        "findings": outcome.get("findings", []),
        "coverage": outcome.get("coverage", manifest.get("coverage", {})),
        "notes": outcome.get("notes", []),
    }
    if result.status != "ok":
        document["error"] = {key: outcome.get(key) or "" for key in ("slug", "message", "traceback")}
    return document


def refuse_used_folder(folder: str) -> None:
    """Raise ``UsageError`` before anything is started if ``folder`` cannot take a new trace."""
    path = Path(folder)
    if path.is_dir():
        if any(path.iterdir()):
            raise UsageError("output-exists", f"{folder} exists and is not empty; name a new folder for the trace")
    elif path.exists() or path.is_symlink():
        raise UsageError("output-exists", f"{folder} exists and is no folder; name a new folder for the trace")


def _verdict(result: RunResult) -> str:
    if result.status != "ok":
        return "untestable"
    return "findings" if result.outcome.get("findings") else "ok"


def _manifest(folder: str) -> dict[str, Any]:
    """What the trace says about itself; empty if the run ended before there was a trace."""
    from opguard_ci.trace.reader import read_trace

    if not (Path(folder) / "manifest.json").exists():
        return {}
    return dict(read_trace(folder).manifest)
