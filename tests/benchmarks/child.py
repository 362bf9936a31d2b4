"""Runs that are measured: in a forked child, and under capture."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from opguard_ci.capture.run import execute
from opguard_ci.worker.request import RunRequest

Train = Callable[[Callable[[int], object]], None]
"""Makes the steps, and is handed ``mark`` for their beginnings."""


def forked(measure: Callable[..., dict[str, Any]], *args: object) -> dict[str, Any]:
    """What a function finds in a forked child that has one thread."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            os.write(writer, json.dumps(measure(*args)).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(text)
    return found


def captured(train: Train, level: str, folder: str) -> dict[str, Any]:
    """Make the steps under capture into ``folder``/trace; its manifest."""
    globals()["train"] = train
    request = RunRequest(f"{__name__}:train", cwd=folder, output=f"{folder}/trace", level=level, profile="observe")  # type: ignore[arg-type]
    outcome = execute(request)
    assert outcome["status"] == "ok", outcome
    manifest: dict[str, Any] = json.loads(Path(folder, "trace", "manifest.json").read_text())
    return manifest
