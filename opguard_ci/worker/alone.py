"""One run in an interpreter that may have nothing of ours but this package: reads a request, leaves the result."""

from __future__ import annotations

import json
from pathlib import Path

from opguard_ci.errors import OpguardError
from opguard_ci.worker.client import run_in_process
from opguard_ci.worker.request import RunRequest


def main(request: str, answer: str) -> None:
    """Run the request of one file; the other gets the result, or the error of a request that makes no sense."""
    try:
        result = run_in_process(RunRequest.from_json(json.loads(Path(request).read_bytes())))
    except OpguardError as error:
        found = {"error": {"slug": error.slug, "message": error.message}}
    else:
        found = {"result": result.to_json()}
    Path(answer).write_text(json.dumps(found))
