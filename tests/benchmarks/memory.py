"""Measures what capture takes of memory and disk, and prints one JSON line.

``python -m tests.benchmarks.memory [--workload cpu_small] [--level op] [--steps 20] [--long 100]``

A child of its own makes the steps bare, one captured, and one of each ``--long`` steps, which shows whether anything
grows with a run's length. ``extra_MB`` is the difference of the most memory that was resident, ``device_extra_MB`` that
of what torch had allocated on the device, and ``bytes_per_event`` the size of the whole trace of the shorter run, its
manifest included, by its events.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from tests.benchmarks.child import captured, forked
from tests.benchmarks.data import workloads
from tests.benchmarks.machine import machine

MB = 1 << 20
WORKLOADS = ("cpu_small", "cpu_medium", "gpu_small", "gpu_large")


def main() -> None:
    """Run the children and print the line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default="cpu_small", choices=WORKLOADS)
    parser.add_argument("--level", default="op", choices=("full", "op", "contract", "auto"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--long", type=int, default=100)
    options = parser.parse_args()
    line: dict[str, Any] = {"workload": options.workload, "level": options.level}
    for steps in (options.steps, options.long):
        bare, captured = (forked(measure, options.workload, steps, level) for level in (None, options.level))
        line[f"extra_MB_{steps}_steps"] = round((captured["resident"] - bare["resident"]) / MB)
        line[f"device_extra_MB_{steps}_steps"] = round((captured["device"] - bare["device"]) / MB)
        line[f"events_{steps}_steps"] = captured["events"]
        line[f"bytes_per_event_{steps}_steps"] = round(captured["bytes"] / captured["events"], 1)
    print(json.dumps(line | machine()))


def measure(workload: str, steps: int, level: str | None) -> dict[str, int]:
    """Resident and device memory at their highest, and events and bytes of the trace."""

    def train(mark: Callable[[int], object]) -> None:
        step = getattr(workloads, workload)()
        for number in range(steps):
            mark(number)
            step()

    found = {"events": 0, "bytes": 0}
    if level is None:
        train(lambda number: None)
    else:
        with tempfile.TemporaryDirectory() as folder:
            found["events"] = sum(step["events"] for step in captured(train, level, folder)["steps"])
            found["bytes"] = sum(path.stat().st_size for path in Path(folder, "trace").rglob("*") if path.is_file())
    found["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["device"] = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
    return found


if __name__ == "__main__":
    main()
