"""Runs one target with two sets of arguments, and compares: what a setting changes, down to the operator."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_ci.commands.options import run_request
from opguard_ci.commands.run import run_document
from opguard_ci.report.progress import progress

if TYPE_CHECKING:
    from opguard_ci.trace.reader import Trace


def compare_configurations(
    args: argparse.Namespace, folder: str, reference: tuple[str, ...], candidate: tuple[str, ...]
) -> dict[str, Any]:
    """The ``compare`` object about two runs whose arguments differ.

    Where they diverged, both are repeated on a second server: arguments are not blamed for what does not repeat itself.
    ``folder`` takes the traces, which are named in the object.
    """
    from opguard_ci.compare import compare_traces
    from opguard_ci.compare.verdict import nothing_compared
    from opguard_ci.evidence.rerun import zoom_sides
    from opguard_ci.evidence.zoom import Side
    from opguard_ci.trace.reader import read_trace
    from opguard_ci.worker import client
    from opguard_ci.worker.commits import Run
    from opguard_ci.worker.servers import Server

    request = client.with_profile(run_request(args, folder))
    profile = str(request.profile)

    def measured(trace: Path, argv: tuple[str, ...], instance: int = 0, keep: Path | None = None) -> Run:
        asked = replace(request, argv=argv, output=str(trace.absolute()), keep=None if keep is None else str(keep))
        return Run(trace, client.run(asked, server=Server.connect(profile, instance=instance)), None)

    def again(argv: tuple[str, ...], scratch: str, plan: Path | None) -> Run:
        return measured(Path(tempfile.mkdtemp(dir=scratch)), argv, int(plan is None), plan)

    sides = {"reference": reference, "candidate": candidate}
    traces = {}
    for name, argv in progress(list(sides.items()), len(sides), args.target):
        run = measured(Path(folder, name), argv)
        if not run.testable:
            document = run_document(args.target, str(run.trace), run.result)
            document["notes"].append(f"This is the {name}, with the arguments {list(argv)}.")
            return {**nothing_compared("untestable"), **document, "trace": str(run.trace) if args.keep else None}
        traces[name] = read_trace(run.trace)
    document = compare_traces(traces["reference"], traces["candidate"]).to_json()
    with tempfile.TemporaryDirectory(prefix="opguard-again-") as scratch:
        if document["verdict"] == "diverged":
            for name, argv in sides.items():
                repeated = again(argv, scratch, None)
                if repeated.testable and _is_unlike(document, name, traces[name], read_trace(repeated.trace)):
                    break
            else:
                zoom_sides(
                    document,
                    *(Side(name, traces[name], partial(again, argv, scratch)) for name, argv in sides.items()),
                    repro=args.repro,
                    refuse=args.zoom or args.repro is not None,
                )
    for name, argv in sides.items():
        document[name].update({"argv": list(argv), "trace": str(Path(folder) / name)})
    return {**document, "target": args.target, "profile": profile}


def _is_unlike(document: dict[str, Any], name: str, trace: Trace, repeated: Trace) -> bool:
    """Whether a side does not repeat itself; that is the verdict then."""
    from opguard_ci.compare import compare_traces

    found = compare_traces(trace, repeated).to_json()
    if found["verdict"] != "diverged":
        return False
    document.update(verdict="unstable", first_divergence=found["first_divergence"])
    document["notes"].append(
        f"The {name} does not repeat itself, so nothing follows from a difference between the two; the divergence "
        "shown is that between its own two runs."
    )
    return True
