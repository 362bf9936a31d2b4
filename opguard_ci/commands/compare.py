"""``opguard compare``: what two traces have in common and where they part; or two configurations of one target."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.html import (
    add_html_option,
    add_perfetto_option,
    perfetto_of,
    picture_of,
    refuse_unwritable,
    write_report,
)
from opguard_ci.commands.options import add_run_settings
from opguard_ci.commands.run import refuse_used_folder, refuse_without_terminal
from opguard_ci.errors import UsageError
from opguard_ci.report.text import render

if TYPE_CHECKING:
    from opguard_ci.trace.reader import Trace

NAME: Final = "compare"
HELP: Final = "compare two traces, or runs with other arguments, and name the first operator that differs"

_BETWEEN: Final = ":::"
_OF_RUNS: Final = (
    "level", "profile", "steps", "from_step", "to_step", "ranks", "allow_unseen", "timeout", "keep",
)  # fmt: skip
"""Options that mean nothing where nothing is run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.usage = "opguard compare [options] REF CAND\n       opguard compare [options] TARGET -- ARGS1 ::: ARGS2"
    parser.add_argument("target", metavar="REF", help="trace folder, manifest or golden of the reference; or a TARGET")
    parser.add_argument("candidate", nargs="?", metavar="CAND", help="the same of the candidate; none after a TARGET")
    parser.add_argument("--strict", action="store_true", help="let differences that leave the contract equal fail, too")
    parser.add_argument("--zoom", action="store_true", help="run both sides again, and say how much differs where")
    parser.add_argument(
        "--repro", metavar="DIR", help="zoom, and leave a script in DIR that repeats the operator; it needs torch alone"
    )
    parser.add_argument(
        "--pdb", action="store_true", help="run the candidate again, and stop it live at the operator in a debugger"
    )
    add_html_option(parser)
    add_perfetto_option(parser)
    runs = parser.add_argument_group("to run a TARGET with ARGS1, and with ARGS2")
    add_run_settings(runs)
    runs.add_argument("--keep", metavar="DIR", help="keep the traces in DIR (default: they are removed)")


def run(args: argparse.Namespace) -> Result:
    """Compare two traces, or run the target twice and compare."""
    if args.repro is not None:
        refuse_used_folder(args.repro)
    if args.pdb:
        if args.candidate is None:
            raise UsageError("usage", "--pdb stops the candidate of two traces: opguard compare REF CAND --pdb.")
        refuse_without_terminal(args, 1)
    refuse_unwritable(args.html, args.perfetto)
    document = _of_configurations(args) if args.candidate is None else _of_traces(args)
    return Result(document, render(document), exit_code(document["verdict"], strict=args.strict))


def _of_traces(args: argparse.Namespace) -> dict[str, Any]:
    from opguard_ci.compare import compare_traces
    from opguard_ci.trace.reader import read_trace

    given = [name for name in _OF_RUNS if getattr(args, name) is not None and getattr(args, name) is not False]
    if args.target_arguments or given:
        what = "Arguments after -- are" if args.target_arguments else f"--{given[0].replace('_', '-')} is"
        raise UsageError("usage", f"{what} for a run: of two traces nothing is run; name one TARGET instead.")
    reference, candidate = read_trace(args.target), read_trace(args.candidate)
    document = compare_traces(reference, candidate).to_json()
    if args.pdb:
        _stop_live(document, candidate)
    if args.zoom or args.repro is not None:
        _look_closer(document, {"reference": reference, "candidate": candidate}, args.repro)
    document["reference"]["trace"] = args.target
    document["candidate"]["trace"] = args.candidate
    _tell_other_runs(document, reference, candidate)
    document["target"] = candidate.manifest.get("target")
    _write_files(document, args)
    return document


def _tell_other_runs(document: dict[str, Any], reference: Trace, candidate: Trace) -> None:
    """Say it where the two were run with other arguments, or for another number of steps."""
    sides = {"reference": reference.manifest, "candidate": candidate.manifest}
    words = {name: list(manifest.get("argv") or ()) for name, manifest in sides.items()}
    if words["reference"] != words["candidate"]:
        for name, argv in words.items():
            document[name]["argv"] = argv
    steps = [sum(step["step"] >= 0 for step in manifest["steps"]) for manifest in sides.values()]
    if steps[0] != steps[1]:
        document["notes"].append(f"The reference has {steps[0]} steps, the candidate {steps[1]}.")


def _stop_live(document: dict[str, Any], candidate: Trace) -> None:
    from opguard_ci.evidence.again import Reruns
    from opguard_ci.evidence.live import stop_at_divergence

    if document["first_divergence"] is None:
        document["notes"].append("There is no divergence to stop at.")
        return
    with Reruns(Path.cwd()) as reruns:
        request = reruns.request("candidate", candidate)
        if request is None:
            raise UsageError(
                "nothing-to-stop-at",
                "The candidate's commit is not checked out: --pdb runs the working tree, as you see it.",
            )
        stop_at_divergence(document["first_divergence"], candidate, request)


def _look_closer(document: dict[str, Any], traces: dict[str, Trace], repro: str | None) -> None:
    from opguard_ci.evidence.again import Reruns
    from opguard_ci.evidence.rerun import zoom_sides

    if document["first_divergence"] is None:
        document["notes"].append("There is no divergence to look at more closely.")
        return
    with Reruns(Path.cwd()) as reruns:
        sides = [reruns.side(name, trace) for name, trace in traces.items()]
        zoom_sides(document, *sides, repro=repro, refuse=True)


def _of_configurations(args: argparse.Namespace) -> dict[str, Any]:
    from opguard_ci.commands.configurations import compare_configurations

    words = args.target_arguments
    if words.count(_BETWEEN) != 1:
        raise UsageError(
            "usage",
            f"compare takes two traces, or a target and two sets of arguments: opguard compare {args.target} -- "
            f"ARGS1 {_BETWEEN} ARGS2; see: opguard compare --help",
        )
    at = words.index(_BETWEEN)
    with ExitStack() as stack:
        if args.keep is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="opguard-compare-"))
        else:
            refuse_used_folder(args.keep)
            folder = args.keep
        document = compare_configurations(args, folder, words[:at], words[at + 1 :])
        _write_files(document, args, keep=args.keep is not None)
    return document


def _write_files(document: dict[str, Any], args: argparse.Namespace, *, keep: bool = True) -> None:
    """Write what was asked for while the traces are there; without ``keep`` they are named no more afterwards."""
    from opguard_ci.report.html import compare_page

    picture = None if args.html is None else picture_of(document)
    if args.perfetto is not None and document["verdict"] != "untestable":
        write_report(args.perfetto, perfetto_of(document))
    for side in () if keep else ("reference", "candidate"):
        document.get(side, {}).pop("trace", None)
    if args.html is not None:
        write_report(args.html, compare_page(document, picture))
