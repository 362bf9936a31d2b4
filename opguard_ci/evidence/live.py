"""Runs a target once more in a process of its own that has the terminal, and stops it live where it departs or raises.

The process is ``python -m opguard_ci.evidence.live REQUEST ENTRY``: a fresh one, so that every pin of the profile
holds, and no child of a fork server, so that a debugger can talk to it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from opguard_ci.determinism.profile import environment_variables
from opguard_ci.errors import UsageError
from opguard_ci.evidence.places import places
from opguard_ci.trace.reader import Trace, read_trace
from opguard_ci.worker.commits import Commits, project_variables
from opguard_ci.worker.identity import DEFAULT_ENTRY
from opguard_ci.worker.places import Job
from opguard_ci.worker.request import RunRequest
from opguard_ci.worker.scratch import Scratch


class NothingToStopAtError(UsageError):
    """There is no call before which, and no error at which, a debugger could stop."""

    def __init__(self, message: str) -> None:
        super().__init__("nothing-to-stop-at", message)


def require_terminal(ranks: int) -> None:
    """Raise ``UsageError`` where nobody could talk to a debugger, or to which of the processes."""
    if ranks > 1:
        raise UsageError("ranks-in-process", f"A debugger stops runs of one process, and this one has {ranks} ranks.")
    if os.path.samestat(os.fstat(0), Path(os.devnull).stat()):
        raise UsageError("no-terminal", "--pdb needs a terminal to talk on, and standard input is closed or /dev/null.")


def stop_at_divergence(
    first: Mapping[str, Any], trace: Trace, request: RunRequest, *, entry: str = DEFAULT_ENTRY
) -> None:
    """Run the candidate again, up to the call at which it departs or that a finding is about; there the user goes on.

    ``first``: a divergence or finding about ``trace``, as in JSON; ``request``: how the trace was recorded; ``entry``:
    what runs it.

    Raises:
        NothingToStopAtError: There is no such call.

    """
    require_terminal(trace.manifest["ranks"])
    index = first["events"].get("candidate") if "events" in first else first.get("event")  # of a finding
    place = places(trace, [index]).get(index) if index is not None else None
    if place is None or place.lane is None:
        raise NothingToStopAtError(f"There is no call before which a debugger could stop ({first['cause']}).")
    where = ", ".join(str(part) for part in (f"step {place.event.step}", place.event.phase, place.event.module) if part)
    live = {"op": place.event.op, "said": f"before {place.event.op} ({where}): {first['cause']}: {first['detail']}"}
    request = replace(request, level=trace.manifest["level"])
    _run_live(request, {"calls": [[place.lane, place.number]], "live": live}, entry)


def stop_at_error(request: RunRequest) -> None:
    """Run a target again that ended by an error, and stop where that was raised."""
    _run_live(request, {"calls": [], "live": {"op": "", "said": f"{request.target} raised"}}, DEFAULT_ENTRY)


def stop_checked(commits: Commits, job: Job, document: dict[str, Any]) -> None:
    """Run the working tree's target of a check again, and stop where it departs or raised.

    ``document``: the check's, whose candidate's trace must still be there. A note says why there was no place to stop.
    """
    first, request = document["first_divergence"], commits.request(job)
    error = document.get("error") or {}
    try:
        with project_variables(commits.config):
            if document["verdict"] == "diverged" and first is not None:
                trace = read_trace(document["candidate"]["trace"])
                stop_at_divergence(first, trace, request, entry=commits.entry)
            elif (error.get("side"), error.get("slug")) == ("candidate", "target-raised"):
                stop_at_error(request)
            elif document["verdict"] not in ("identical", "equivalent"):
                document["notes"].append(f"No debugger was started: what is {document['verdict']} departs nowhere.")
    except NothingToStopAtError as nothing:
        document["notes"].append(nothing.message)


def _run_live(request: RunRequest, plan: dict[str, Any], entry: str) -> None:
    with Scratch() as folder:
        files = Path(folder, "plan.json"), Path(folder, "request.json")
        files[0].write_text(json.dumps({"folder": str(folder), **plan}))
        files[1].write_text(json.dumps({**request.to_json(), "output": f"{folder}/trace", "keep": str(files[0])}))
        environment = {**os.environ, **environment_variables(str(request.profile))}
        command = [sys.executable, "-m", "opguard_ci.evidence.live", str(files[1]), entry]
        with _interrupts_of_the_debugger():
            subprocess.run(command, env=environment, check=False)


@contextmanager
def _interrupts_of_the_debugger() -> Iterator[None]:
    """Leave Ctrl-C to the process that has the terminal."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main(file: str, entry: str) -> None:
    """Run the request in a file in this process."""
    from opguard_ci.capture.live import STOPPED
    from opguard_ci.worker.client import run_in_process

    result = run_in_process(RunRequest.from_json(json.loads(Path(file).read_text())), entry=entry)
    if Path(file).with_name(STOPPED).exists():
        return
    print("opguard: this time the run did not come by the place at which to stop.", file=sys.stderr)
    if result.status != "ok":
        print(result.outcome.get("traceback", ""), result.outcome.get("message", ""), sep="", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
