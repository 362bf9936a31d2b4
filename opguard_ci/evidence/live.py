"""Runs the candidate once more in a process of its own that has the terminal, and stops it live at the divergence.

The process is ``python -m opguard_ci.evidence.live REQUEST``: a fresh one, so that every pin of the profile holds, and
no child of a fork server, so that a debugger can talk to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from opguard_ci.determinism.profile import environment_variables
from opguard_ci.errors import UsageError
from opguard_ci.evidence.places import places
from opguard_ci.trace.reader import Trace
from opguard_ci.worker.request import RunRequest


def stop_at_divergence(document: dict[str, Any], trace: Trace, request: RunRequest, scratch: Path) -> None:
    """Run the candidate, whose trace and request are given, up to the call at which it departs; there the user goes on.

    Raises:
        UsageError: ``nothing-to-stop-at``: the candidate makes no call there.

    """
    first = document["first_divergence"]
    if request.ranks > 1:
        raise UsageError(
            "nothing-to-stop-at", "One of several ranks cannot be stopped: the others would wait for it and time out."
        )
    index = (first.get("events") or {}).get("candidate")
    place = places(trace, [index]).get(index) if index is not None else None
    if place is None or place.lane is None:
        raise UsageError(
            "nothing-to-stop-at", f"The candidate makes no call at which it could be stopped ({first['cause']})."
        )
    plan, file = scratch / "plan.json", scratch / "request.json"
    where = ", ".join(str(part) for part in (f"step {place.event.step}", place.event.phase, place.event.module) if part)
    said = f"{place.event.op} ({where}): {first['cause']}: {first['detail']}"
    calls = [[place.lane, place.number]]
    plan.write_text(json.dumps({"folder": str(scratch), "calls": calls, "entries": [], "live": said}))
    wanted = {**request.to_json(), "output": str(scratch / "live"), "keep": str(plan)}
    file.write_text(json.dumps(wanted))
    environment = {**os.environ, **environment_variables(str(request.profile))}
    subprocess.run([sys.executable, "-m", "opguard_ci.evidence.live", str(file)], env=environment, check=False)


def main(file: str) -> None:
    """Run the request in a file in this process."""
    from opguard_ci.worker.client import run_in_process

    result = run_in_process(RunRequest.from_json(json.loads(Path(file).read_text())))
    if result.status != "ok":
        print(result.outcome.get("traceback", ""), result.outcome.get("message", ""), sep="", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
