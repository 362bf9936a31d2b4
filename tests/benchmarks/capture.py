"""Measures a training step bare and under capture, and prints one JSON line.

``python tests/benchmarks/capture.py [--workload cpu_small] [--rounds 7] [--steps 20] [--modes bare,full]``

A round is one forked child per mode, one after the other, so that a machine that slows down slows all modes. A child
makes warm-up steps and then ``steps`` more; its figure is the time from the start of the first of these to the start of
the step after the last one, so what capture does at the end of a step counts. Each mode's figure is the median over the
rounds, and a ratio is the median of the rounds' own ratios.

The modes: ``bare``; ``pass_through``, a dispatch mode that does nothing; capture at levels ``full``, ``op`` and
``contract``; ``full_python`` and ``op_python``, the same by the Python recorder, without the compiled one; and
``debug_mode``, torch's DebugMode with ``hash_tensor``. Also printed: the bytes of a trace per event, and how much more
memory a child needs than the bare one at most.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)

import argparse
import gc
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[2]))

from opguard_ci.capture import native
from tests.benchmarks.child import captured, forked
from tests.benchmarks.data import workloads
from tests.benchmarks.machine import machine

MODES = ("bare", "pass_through", "full", "op", "full_python", "op_python", "contract", "debug_mode")
WARM_UP = 3
MB = 1 << 10  # of the kilobytes in which the system counts


class PassThrough(TorchDispatchMode):
    """Sees every operator and does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Run all rounds and print the line."""
    parser = argparse.ArgumentParser(description="Measure a training step bare and under capture.")
    parser.add_argument("--workload", default="cpu_small", choices=("cpu_small", "cpu_medium"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    native.load()  # in the parent of all, whose heap is not looked at by the children, as in a server
    gc.collect()
    gc.freeze()
    modes = options.modes.split(",")
    rounds = []
    for _ in range(options.rounds):
        rounds.append({mode: forked(measure, options.workload, options.steps, mode) for mode in modes})
    line: dict[str, Any] = {"workload": options.workload, "steps": options.steps}
    for mode in modes:
        line[f"{mode}_ms"] = round(statistics.median(one[mode]["seconds"] for one in rounds) * 1e3, 2)
    for mode in modes[1:]:
        line[f"{mode}_ratio"] = round(
            statistics.median(one[mode]["seconds"] / one["bare"]["seconds"] for one in rounds), 3
        )
    for mode in modes[1:]:
        line[f"{mode}_extra_MB"] = max(one[mode]["memory"] - one["bare"]["memory"] for one in rounds) // MB
    for mode in modes:
        if "bytes" in rounds[0][mode]:
            line[f"{mode}_bytes_per_event"] = round(rounds[0][mode]["bytes"] / rounds[0][mode]["events"], 1)
    raw = [{mode: round(taken["seconds"] * 1e3, 2) for mode, taken in one.items()} for one in rounds]
    line |= {"threads": 1, "compiled": native.load()[0] is not None} | machine()
    print(json.dumps(line | {"rounds": raw}))


def measure(workload: str, steps: int, mode: str) -> dict[str, float]:
    """Seconds per step of one mode in this process, its most memory in KB, and size and events of the trace."""
    starts: list[float] = []

    def train(mark: Callable[[int], object]) -> None:
        step = getattr(workloads, workload)()
        for number in range(WARM_UP + steps + 1):
            mark(number)
            starts.append(time.perf_counter())
            step()

    found: dict[str, float] = {}
    level = mode.removesuffix("_python")
    if level in ("full", "op", "contract"):
        if mode.endswith("_python"):
            native.switch_off("measured without it")
        with tempfile.TemporaryDirectory() as folder:
            (events,) = captured(train, level, folder)["objects"].values()
        found |= {"bytes": events["bytes"], "events": events["events"]}
    else:
        with {"pass_through": PassThrough, "debug_mode": DebugMode}.get(mode, nullcontext)():
            if mode == "debug_mode":
                with DebugMode.log_tensor_hashes(hash_fn="hash_tensor"):
                    train(lambda number: None)
            else:
                train(lambda number: None)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found | {"seconds": (starts[-1] - starts[WARM_UP]) / steps, "memory": memory}


if __name__ == "__main__":
    main()
