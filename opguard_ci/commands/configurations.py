"""Runs one target with two sets of arguments, and compares: what a setting changes, down to the operator."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from opguard_ci.commands.options import run_request
from opguard_ci.commands.run import run_document
from opguard_ci.report.progress import progress


def compare_configurations(
    args: argparse.Namespace, folder: str, reference: tuple[str, ...], candidate: tuple[str, ...]
) -> dict[str, Any]:
    """The ``compare`` object about two runs whose arguments differ.

    Where they diverged, both are repeated on a second server: arguments are not blamed for what does not repeat itself.
    ``folder`` takes the traces, which are named in the object if they are to be kept.
    """
    from opguard_ci.compare import compare_traces
    from opguard_ci.trace.reader import read_trace
    from opguard_ci.worker import client
    from opguard_ci.worker.servers import Server

    request = client.with_profile(run_request(args, folder))
    assert request.profile is not None

    def measured(name: str, argv: tuple[str, ...], instance: int = 0) -> dict[str, Any]:
        trace = str(Path(folder) / name)
        server = Server.connect(str(request.profile), instance=instance)
        result = client.run(replace(request, argv=argv, output=str(Path(trace).absolute())), server=server)
        return run_document(args.target, trace, result)

    sides = {"reference": reference, "candidate": candidate}
    for name, argv in progress(list(sides.items()), len(sides), args.target):
        document = measured(name, argv)
        if document["verdict"] == "untestable":
            document["notes"].append(f"This is the {name}, with the arguments {list(argv)}.")
            return document if args.keep else {**document, "trace": None}
    traces = {name: read_trace(str(Path(folder) / name)) for name in sides}
    document = compare_traces(traces["reference"], traces["candidate"]).to_json()
    if document["verdict"] == "diverged":
        for name, argv in sides.items():
            if measured(f"{name}-again", argv, instance=1)["verdict"] == "untestable":
                continue
            again = compare_traces(traces[name], read_trace(str(Path(folder) / f"{name}-again"))).to_json()
            if again["verdict"] == "diverged":
                document.update(verdict="unstable", first_divergence=again["first_divergence"])
                document["notes"].append(
                    f"The {name} does not repeat itself, so nothing follows from a difference between the two; the "
                    "divergence shown is that between its own two runs."
                )
                break
    for name, argv in sides.items():
        document[name].update({"argv": list(argv)}, **({"trace": str(Path(folder) / name)} if args.keep else {}))
    return {**document, "target": args.target, "profile": request.profile}
