"""``opguard replay``: runs a target several times and says whether it repeats itself."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.options import add_run_options, at_least, run_request
from opguard_ci.commands.run import refuse_used_folder, run_document
from opguard_ci.report.progress import progress
from opguard_ci.report.text import render

NAME: Final = "replay"
HELP: Final = "run a target several times and name what does not repeat itself"

_WORST: Final = ("unstable", "untestable", "environment", "equivalent", "identical")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    add_run_options(parser)
    parser.add_argument("-n", type=at_least(2), default=2, dest="runs", metavar="N", help="how many runs (default: 2)")
    parser.add_argument("--keep", metavar="DIR", help="keep the traces in DIR (default: they are removed)")


def run(args: argparse.Namespace) -> Result:
    """Run the target ``args.runs`` times on two servers and compare each run with the first."""
    with ExitStack() as stack:
        if args.keep is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="opguard-replay-"))
        else:
            refuse_used_folder(args.keep)
            folder = args.keep
        document = _replay(args, folder)
    return Result(document, render(document), exit_code(document["verdict"]))


def merge(documents: Sequence[dict[str, Any]], findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One object from the comparisons of all later runs with the first: the worst one, and what the others add."""
    for document in documents:
        if document["verdict"] == "diverged":
            document["verdict"] = "unstable"
    merged = dict(min(documents, key=lambda document: _WORST.index(document["verdict"])))
    divergences = _distinct([document["first_divergence"] for document in documents if document["first_divergence"]])
    if divergences:
        merged["first_divergence"], *others = divergences
        merged["unstable"] = others
    for key in ("transient", "findings"):
        merged[key] = _distinct([item for document in documents for item in document[key]])
    merged["findings"] = _distinct([*merged["findings"], *findings])
    return merged


def _replay(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    from opguard_ci.compare import compare_traces
    from opguard_ci.trace.reader import read_trace
    from opguard_ci.worker import client
    from opguard_ci.worker.servers import Server

    folders = [str(Path(folder) / f"run-{number}") for number in range(args.runs)]
    request = client.with_profile(run_request(args, folder))
    assert request.profile is not None
    findings: list[dict[str, Any]] = []
    for number, trace in enumerate(progress(folders, args.runs, args.target)):
        # Two forks of one server share hash seed and heap addresses and so prove little.
        server = Server.connect(request.profile, instance=number % 2)
        result = client.run(replace(request, output=str(Path(trace).absolute())), server=server)
        document = run_document(args.target, trace, result)
        if request.level == "auto":
            request = replace(request, level=document.get("level", request.level))
        if document["verdict"] == "untestable":
            return document if args.keep else {**document, "trace": None}
        findings += document["findings"]
    reference = read_trace(folders[0])
    documents = [compare_traces(reference, read_trace(trace)).to_json() for trace in folders[1:]]
    for number, document in enumerate(documents, 2):
        for side, run, trace in (("reference", 1, folders[0]), ("candidate", number, folders[number - 1])):
            document[side].update({"run": run, "trace": trace} if args.keep else {"run": run})
    merged = merge(documents, findings)
    return {**merged, "target": args.target, "profile": request.profile, "runs": args.runs}


def _distinct(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One object of each kind: the first with its operator, cause, module and phase."""
    kinds: dict[tuple[object, ...], dict[str, Any]] = {}
    for item in items:
        kinds.setdefault(tuple(item.get(key) for key in ("op", "cause", "module", "phase")), item)
    return list(kinds.values())
