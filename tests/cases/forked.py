"""Runs one side of a case in a forked child of this process, or in a fresh one for another hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401  # so that the first optimizer of a child does not import it

from opguard_ci.capture.run import execute
from opguard_ci.worker.request import RunRequest


def run_side(program: Path, function: str, output: Path, hash_seed: int) -> str:
    """What kept the run from its end, or nothing."""
    if hash_seed > 1:
        command = [sys.executable, __file__, str(program), function, str(output)]
        env = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr[-3000:]
    report = output.with_suffix(".outcome")
    child = os.fork()
    if child == 0:
        try:
            report.write_text(_execute(program, function, output))
        except BaseException as error:
            import traceback

            report.write_text("".join(traceback.format_exception(error)))
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return report.read_text() if status == 0 else f"the child ended with status {status}"


def _execute(program: Path, function: str, output: Path) -> str:
    target = f"{program}:{function}"
    outcome = execute(RunRequest(target=target, cwd=str(program.parent), output=str(output), profile="observe"))
    return "" if outcome["status"] == "ok" else json.dumps(outcome, indent=1)


if __name__ == "__main__":
    failure = _execute(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    sys.stderr.write(failure)
    sys.exit(1 if failure else 0)
