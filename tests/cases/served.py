"""Runs one side of a case in a forked child of a server, as ``opguard run`` does."""

from __future__ import annotations

import os
from pathlib import Path

from opguard_ci.worker import client
from opguard_ci.worker.request import Level, RunRequest
from opguard_ci.worker.servers import Server


def run_side(program: Path, function: str, output: Path, instance: int, level: Level = "full") -> str:
    """Capture one function of a program; returns what kept the run from its end, or nothing."""
    request = RunRequest(
        f"{program}:{function}", cwd=str(program.parent), output=str(output), profile="observe", level=level
    )
    server = Server.connect("observe", instance=instance)
    with Path(os.devnull).open("wb") as null:  # warnings of a program are no part of what is judged
        result = client.run(request, server=server, stdout=null.fileno(), stderr=null.fileno())
    outcome = result.outcome
    return "" if result.status == "ok" else f"{outcome['slug']}: {outcome['message']}\n{outcome.get('traceback', '')}"
