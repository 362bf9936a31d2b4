"""Measures a training step on a CUDA device bare and under capture, and prints one JSON line.

``python -m tests.benchmarks.gpu [--workload gpu_small] [--rounds 7] [--steps 10]``

In one process, on one model, all modes take turns in every round: ``bare``; ``pass_through``, a dispatch mode that does
nothing; capture at each level; and ``debug_mode``, torch's DebugMode with ``hash_tensor``. A figure is the time
from the start of the first step after the warm-up until the device is done with the last, so what capture does at the
end of a step counts. Each mode's figure is the median over the rounds, a ratio the median of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.benchmarks.child import captured
from tests.benchmarks.data import workloads
from tests.benchmarks.machine import machine

LEVELS = ("full", "op", "contract")
MODES = ("bare", "pass_through", *LEVELS, "debug_mode")
WARM_UP = 2
MB = 1 << 20


class PassThrough(TorchDispatchMode):
    """Sees every operator and does nothing."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Run all rounds and print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="gpu_small", choices=("gpu_small", "gpu_large"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    modes = options.modes.split(",")
    step = getattr(workloads, options.workload)()
    gc.collect()
    gc.freeze()  # as the servers do whose children runs are
    rounds: list[dict[str, tuple[float, int]]] = []
    for _ in range(options.rounds):
        rounds.append({mode: measure(step, mode, options.steps) for mode in modes})
    line: dict[str, Any] = {"workload": options.workload, "steps": options.steps}
    for mode in modes:
        line[f"{mode}_ms"] = round(statistics.median(one[mode][0] for one in rounds) * 1e3, 2)
    for mode in modes[1:]:
        line[f"{mode}_ratio"] = round(statistics.median(one[mode][0] / one["bare"][0] for one in rounds), 3)
    for mode in modes[1:]:
        line[f"{mode}_extra_MB"] = round(max(one[mode][1] - one["bare"][1] for one in rounds) / MB)
    raw = [{mode: round(seconds * 1e3, 2) for mode, (seconds, _) in one.items()} for one in rounds]
    print(json.dumps(line | machine() | {"rounds": raw}))


def measure(step: Callable[[], object], mode: str, steps: int) -> tuple[float, int]:
    """Seconds per step of one mode, and the most bytes that were allocated on the device."""
    begin = 0.0

    def train(mark: Callable[[int], object]) -> None:
        nonlocal begin
        for number in range(WARM_UP + steps):
            mark(number)
            if number == WARM_UP:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                begin = time.perf_counter()
            step()
        mark(WARM_UP + steps)
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begin) / steps)

    taken: list[float] = []
    if mode in LEVELS:
        with tempfile.TemporaryDirectory() as folder:
            captured(train, mode, folder)
    elif mode == "debug_mode":
        with DebugMode(), DebugMode.log_tensor_hashes(hash_fn="hash_tensor"):
            train(lambda number: None)
    elif mode == "pass_through":
        with PassThrough():
            train(lambda number: None)
    else:
        train(lambda number: None)
    return taken[0], torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    main()
