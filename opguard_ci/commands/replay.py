"""``opguard replay``: runs a target several times and says whether it repeats itself."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.commands.options import add_run_options, at_least, run_request
from opguard_ci.commands.run import refuse_used_folder, run_document
from opguard_ci.report.progress import progress, steps_shown
from opguard_ci.report.text import render

if TYPE_CHECKING:
    from opguard_ci.trace.reader import Trace
    from opguard_ci.worker.commits import Run
    from opguard_ci.worker.request import RunRequest

NAME: Final = "replay"
HELP: Final = "run a target several times and name what does not repeat itself"

_WORST: Final = ("unstable", "untestable", "environment", "equivalent", "identical")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    add_run_options(parser)
    parser.add_argument("-n", type=at_least(2), default=2, dest="runs", metavar="N", help="how many runs (default: 2)")
    parser.add_argument(
        "--diagnose",
        action="store_true",
        help="if it does not repeat itself, try what cures it: deterministic algorithms, one thread, one hash seed, "
        "seeds, the profile strict; each alone and several times",
    )
    parser.add_argument("--keep", metavar="DIR", help="keep the traces in DIR (default: they are removed)")


def run(args: argparse.Namespace) -> Result:
    """Run the target ``args.runs`` times on two servers and compare each run with the first."""
    with ExitStack() as stack:
        if args.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opguard-replay-")))
        else:
            refuse_used_folder(args.keep)
            folder = Path(args.keep)
        document = _replay(args, folder)
    return Result(document, render(document), exit_code(document["verdict"]))


def merge(documents: Sequence[dict[str, Any]], findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One object from the comparisons of all later runs with the first: the worst one, and what the others add."""
    from opguard_ci.compare.repeated import first_of_each_kind

    for document in documents:
        if document["verdict"] == "diverged":
            document["verdict"] = "unstable"
    merged = dict(min(documents, key=lambda document: _WORST.index(document["verdict"])))
    divergences = first_of_each_kind(
        [document["first_divergence"] for document in documents if document["first_divergence"]]
    )
    if divergences:
        merged["first_divergence"], *others = divergences
        merged["unstable"] = others
    for key in ("transient", "findings"):
        merged[key] = first_of_each_kind([item for document in documents for item in document[key]])
    merged["findings"] = first_of_each_kind([*merged["findings"], *findings])
    return merged


def _replay(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from opguard_ci.compare import compare_traces
    from opguard_ci.compare.verdict import nothing_compared
    from opguard_ci.evidence.repeats import run_once
    from opguard_ci.trace.reader import read_trace
    from opguard_ci.worker import client

    traces = [folder / f"run-{number}" for number in range(args.runs)]
    request = client.with_profile(run_request(args, str(folder)))
    findings: list[dict[str, Any]] = []
    for number, place in enumerate(progress(traces, args.runs, args.target)):
        document = run_document(args.target, str(place), run_once(request, place, number))
        if request.level == "auto":
            request = replace(request, level=document.get("level", request.level))
        if document["verdict"] == "untestable":
            return {**nothing_compared("untestable"), **document, "trace": str(place) if args.keep else None}
        findings += document["findings"]
    reference, *others = (read_trace(place) for place in traces)
    documents = [compare_traces(reference, other).to_json() for other in others]
    for number, document in enumerate(documents, 2):
        for side, run in (("reference", 1), ("candidate", number)):
            trace = {"trace": str(traces[run - 1])} if args.keep else {}
            document[side].update({"run": run, **trace})
    merged = merge(documents, findings)
    merged = {**merged, "target": args.target, "profile": request.profile, "runs": args.runs}
    if merged["verdict"] == "unstable":
        with tempfile.TemporaryDirectory(prefix="opguard-again-") as scratch:
            _explain(merged, [reference, *others], _Again(request, Path(scratch)))
    if args.diagnose:
        _diagnose(merged, documents, _Again(request, folder))
    return merged


@dataclass(frozen=True, slots=True)
class _Again:
    """How to run the target once more, and where that may write."""

    request: RunRequest
    scratch: Path

    def __call__(self, plan: Path | None) -> Run:
        from opguard_ci.evidence.repeats import run_once
        from opguard_ci.worker.commits import Run

        place = Path(tempfile.mkdtemp(dir=self.scratch))
        return Run(place, run_once(self.request, place, int(plan is None), keep=plan), None)


def _explain(document: dict[str, Any], traces: list[Trace], again: _Again) -> None:
    """Add what else does not repeat itself, and what speaks for a fault of the machine."""
    from opguard_ci.compare.repeated import first_of_each_kind, unstable_kinds
    from opguard_ci.evidence.hardware import suspect

    first = document["first_divergence"]
    pair = (traces[0], traces[document["candidate"]["run"] - 1])
    kinds = unstable_kinds(*pair, max((item["step"] for item in document["contract"]), default=first["step"]))
    _, *document["unstable"] = first_of_each_kind([first, *document.get("unstable", ()), *kinds])
    found = suspect(traces, again, again.scratch)
    if found is not None:
        document["hardware"] = found


def _diagnose(document: dict[str, Any], documents: list[dict[str, Any]], again: _Again) -> None:
    from opguard_ci.evidence.diagnosis import diagnose

    if document["verdict"] != "unstable":
        document["notes"].append("Nothing to diagnose: the runs agree. A race may need more of them (-n).")
        return
    different = sum(each["verdict"] == "unstable" for each in documents)
    with tempfile.TemporaryDirectory(prefix="opguard-diagnosis-") as scratch, steps_shown() as show:
        document["diagnosis"] = diagnose(again.request, (different, len(documents)), Path(scratch), show)
