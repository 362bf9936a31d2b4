"""Entries for fork servers of these tests."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from typing import Any

from opguard_ci.recipe import load_function, parse_target
from opguard_ci.worker import ranks
from opguard_ci.worker.request import RunRequest


def execute_bare(request: RunRequest) -> dict[str, Any]:
    """Run a target in several ranks without capture."""
    return ranks.launch(request, entry=f"{__name__}:bare")


def bare(request: RunRequest) -> dict[str, Any]:
    """What a rank does: call the target's function."""
    target = parse_target(request.target, request.cwd)
    sys.path[:0] = target.search_path(request.cwd, request.root)
    sys.argv = [target.text, *request.argv]
    ranks.as_launched()
    result = load_function(target)()
    if inspect.isgenerator(result):
        deque(result, maxlen=0)
    return {"status": "ok"}
