"""Measures a training step bare and under capture, and prints one JSON line.

``python tests/benchmarks/capture.py [--workload cpu_small] [--rounds 7] [--steps 20]``

A round is one forked child per mode, one after the other, so that a machine that slows down slows all modes. A child
makes warm-up steps and then ``steps`` more; its figure is the time from the start of the first of these to the start of
the step after the last one, so what capture does at the end of a step counts. Each mode's figure is the median over the
rounds, and a ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo

sys.path.insert(0, str(Path(__file__).parents[2]))

from opguard_ci.capture.run import execute
from opguard_ci.worker.request import RunRequest
from tests.benchmarks.data import workloads

MODES = ("bare", "full", "contract")
WARM_UP = 3


def main() -> None:
    """Run all rounds and print the line."""
    parser = argparse.ArgumentParser(description="Measure a training step bare and under capture.")
    parser.add_argument("--workload", default="cpu_small", choices=("cpu_small", "cpu_medium"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        rounds.append({mode: child(options.workload, options.steps, mode) for mode in MODES})
    line: dict[str, object] = {"workload": options.workload, "steps": options.steps, "rounds": options.rounds}
    for mode in MODES:
        line[f"{mode}_ms"] = round(statistics.median(one[mode] for one in rounds) * 1e3, 2)
    for mode in MODES[1:]:
        line[f"{mode}_ratio"] = round(statistics.median(one[mode] / one["bare"] for one in rounds), 2)
    line |= {"threads": 1, "torch": torch.__version__, "python": platform.python_version(), "cpus": os.cpu_count()}
    print(json.dumps(line))


def child(workload: str, steps: int, mode: str) -> float:
    """Seconds per step of one mode, measured in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            os.write(writer, json.dumps(measure(workload, steps, mode)).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return float(json.loads(text))


def measure(workload: str, steps: int, mode: str) -> float:
    """Seconds per step of one mode, measured in this process."""
    starts: list[float] = []

    def train(mark: Callable[[int], object]) -> None:
        step = getattr(workloads, workload)()
        for number in range(WARM_UP + steps + 1):
            mark(number)
            starts.append(time.perf_counter())
            step()

    if mode == "bare":
        train(lambda number: None)
    else:
        globals()["train"] = train
        with tempfile.TemporaryDirectory() as folder:
            target = f"{__name__}:train"
            request = RunRequest(target, cwd=folder, output=f"{folder}/trace", level=mode, profile="observe")
            outcome = execute(request)
        assert outcome["status"] == "ok", outcome
    return (starts[-1] - starts[WARM_UP]) / steps


if __name__ == "__main__":
    main()
