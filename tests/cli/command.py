"""Calls the command line as a shell would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMPARE_KEYS = {
    "schema", "verdict", "reference", "candidate", "first_divergence", "contract", "transient", "findings", "structure",
    "coverage", "notes",
}  # fmt: skip
"""Of the object of every comparison, also of one that could not be made."""
ROOT = Path(__file__).parents[2]


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "opguard_ci", *map(str, words)]


def environment(**variables: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "PYTHONHASHSEED")
    }
    return {**kept, **variables}


def opguard(
    *words: str | Path, cwd: Path, timeout: float = 120, stdin: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command; ``stdin``: what is typed, and /dev/null for None."""
    return subprocess.run(
        command(*words), cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=timeout,
        **{"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin},
    )  # fmt: skip


def opguard_json(*words: str | Path, cwd: Path, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the object; fails unless standard output is exactly one JSON object."""
    done = opguard(*words, "--json", cwd=cwd, **variables)
    assert done.stdout.endswith("\n"), done.stderr
    return done.returncode, json.loads(done.stdout)
