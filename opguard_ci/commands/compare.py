"""``opguard compare``: what two traces have in common, and where they part."""

from __future__ import annotations

import argparse
from typing import Final

from opguard_ci.commands import Result, exit_code
from opguard_ci.report.text import render

NAME: Final = "compare"
HELP: Final = "compare two traces and name the first operator that computed something else"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.add_argument("reference", metavar="REF", help="trace folder, manifest or golden of the reference")
    parser.add_argument("candidate", metavar="CAND", help="trace folder, manifest or golden of the candidate")
    parser.add_argument("--strict", action="store_true", help="let differences that leave the contract equal fail, too")


def run(args: argparse.Namespace) -> Result:
    """Compare the two traces."""
    from opguard_ci.compare import compare_traces
    from opguard_ci.trace.reader import read_trace

    reference, candidate = read_trace(args.reference), read_trace(args.candidate)
    document = compare_traces(reference, candidate).to_json()
    document["reference"]["trace"] = args.reference
    document["candidate"]["trace"] = args.candidate
    document["target"] = candidate.manifest.get("target")
    return Result(document, render(document), exit_code(document["verdict"], strict=args.strict))
