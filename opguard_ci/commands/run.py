"""``opguard run``: one run of a target under capture, and what the run alone gives away."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.options import add_run_options, run_request
from opguard_ci.errors import UsageError
from opguard_ci.levels import BLIND_SPOTS
from opguard_ci.report.text import render
from opguard_ci.trace.files import MANIFEST

if TYPE_CHECKING:
    from opguard_ci.trace.reader import Trace
    from opguard_ci.worker.request import RunRequest, RunResult

NAME: Final = "run"
HELP: Final = "run a target once under capture and write its trace"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    add_run_options(parser)
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to create for the trace")
    parser.add_argument("--in-process", action="store_true", help="run in this process, for a debugger")
    parser.add_argument(
        "--pdb",
        action="store_true",
        help="where the target raised, or before the operator of the first finding, stop a second run in a debugger",
    )


def run(args: argparse.Namespace) -> Result:
    """Run the target, and report findings, coverage and how it ended."""
    if _holds_nothing(Path(args.output)):
        _remove_beginning(Path(args.output), is_new=False)
    refuse_used_folder(args.output)
    from opguard_ci.worker import client

    request = run_request(args, args.output)
    if args.pdb:
        refuse_without_terminal(args, request.ranks)
    is_new = not Path(args.output).exists()
    try:
        result = client.run_in_process(request) if args.in_process else client.run(request)
    except UsageError:
        _remove_beginning(Path(args.output), is_new)
        raise
    document = run_document(args.target, args.output, result)
    if args.pdb:
        stop_run(document, client.with_profile(request))
    return Result(document, render(document), exit_code(document["verdict"]))


def _findings(trace: Trace) -> list[dict[str, Any]]:
    if all(step.get("flagged") == [] for step in trace.manifest["steps"]):
        return []  # without numpy, whose import takes a third of this command's own time
    from opguard_ci.compare import single_run_findings

    return single_run_findings(trace)


def run_document(target: str, folder: str, result: RunResult) -> dict[str, Any]:
    """The JSON object of one run: how it ended, from the result; what was seen, from the trace that it left."""
    from opguard_ci.trace.reader import read_trace

    outcome = result.outcome
    document: dict[str, Any] = {"schema": 1, "verdict": "untestable", "target": target, "trace": folder}
    if (Path(folder) / "manifest.json").exists():
        trace = read_trace(folder)
        manifest, findings = trace.manifest, _findings(trace)
        document.update({key: manifest[key] for key in ("commit", "profile", "level", "coverage")})
        document.update(environment=manifest["environment"]["key"], steps=len(manifest["steps"]), findings=findings)
    if result.status == "ok":
        document["verdict"] = "findings" if document["findings"] else "ok"
    else:
        document["error"] = {key: outcome.get(key) or "" for key in ("slug", "message", "traceback")}
    blind = [BLIND_SPOTS[document["level"]]] if document.get("level") in BLIND_SPOTS else []
    return {**document, "seconds": round(result.seconds, 3), "notes": [*blind, *outcome.get("notes", [])]}


def refuse_without_terminal(args: argparse.Namespace, ranks: int) -> None:
    """Raise ``UsageError`` before anything is started where no debugger can talk to the user."""
    from opguard_ci.evidence.live import require_terminal

    if args.json:
        raise UsageError("usage", "--pdb needs the terminal: use it without --json.")
    require_terminal(ranks)


def stop_run(document: dict[str, Any], request: RunRequest) -> None:
    """Run the target of a run's object again, and stop where it raised or at its first finding; a note if at neither.

    Other ways to end (a crash, a timeout) leave nothing to talk to.
    """
    from opguard_ci.evidence.live import NothingToStopAtError, stop_at_divergence, stop_at_error
    from opguard_ci.trace.reader import read_trace

    try:
        if (document.get("error") or {}).get("slug") == "target-raised":
            stop_at_error(request)
        elif document.get("findings"):
            stop_at_divergence(document["findings"][0], read_trace(document["trace"]), request)
        else:
            document["notes"].append("There is nothing for a debugger to stop at: no error, and no finding.")
    except NothingToStopAtError as error:
        document["notes"].append(error.message)


def refuse_used_folder(folder: str) -> None:
    """Raise ``UsageError`` before anything is started if ``folder`` cannot take a new trace."""
    path = Path(folder)
    if path.is_dir():
        if any(path.iterdir()):
            raise UsageError("output-exists", f"{folder} exists and is not empty; name a new folder for the trace")
    elif path.exists() or path.is_symlink():
        raise UsageError("output-exists", f"{folder} exists and is no folder; name a new folder for the trace")


def _holds_nothing(folder: Path) -> bool:
    """Whether a folder has the trace of a run that failed before it recorded anything, as at an import, and no more."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        begun = manifest["complete"] or manifest["steps"] or manifest["coverage"]["operators"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return not begun and all(re.fullmatch(r"manifest\.json|events-\d+\.arrows", file.name) for file in folder.iterdir())


def _remove_beginning(folder: Path, is_new: bool) -> None:
    """Undo what was written before a request turned out to be wrong, so that the corrected one can use the folder."""
    if not folder.is_dir():
        return
    for file in [folder / "manifest.json", *folder.glob("*-*.arrows")]:
        file.unlink(missing_ok=True)
    if is_new and not any(folder.iterdir()):
        folder.rmdir()
