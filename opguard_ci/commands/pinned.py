"""What a profile comes to on this machine, asked of a fresh process.

The process is ``python -m opguard_ci.commands.pinned PROFILE``; it prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from opguard_ci.determinism.profile import apply, environment_variables, overridden
from opguard_ci.errors import OpguardError
from opguard_ci.garbage import no_collections


def ask(profiles: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Environment key, document and unmet pins of each profile, and why the recorder is not the compiled one, if it
    is not. The processes run side by side.
    """
    asked = {
        profile: subprocess.Popen(
            [sys.executable, "-m", "opguard_ci.commands.pinned", profile],
            env={**os.environ, **environment_variables(profile)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for profile in profiles
    }
    answers = {}
    for profile, process in asked.items():
        out, err = process.communicate()
        if process.returncode:
            last = (err.strip().splitlines() or ["no message"])[-1]
            raise OpguardError(
                "environment-unreadable", f"the environment cannot be read ({last}); does import torch work?"
            )
        answers[profile] = {**json.loads(out), "overridden": overridden(profile, os.environ)}
    return answers


def describe(profile: str) -> dict[str, Any]:
    """Pin this process and say what its environment is then."""
    with no_collections():
        from opguard_ci.capture import native
        from opguard_ci.determinism.environment import environment_document, environment_key

        problems = apply(profile, compiles=False)
    document = environment_document()
    key = environment_key(document, profile)
    return {"key": key, "document": document, "problems": problems, "not_compiled": native.load()[1]}


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1])))
