"""Measures ``opguard compare`` on long traces, and prints one JSON line.

``python -m tests.benchmarks.compare [--sizes 100000 300000 1000000] [--rounds 3] [--seed 0]``

A seeded synthetic step of 2,000 operators is repeated until a trace has so many of them, and written with the project's
own writer. ``identical`` compares the trace with a copy of it; ``diverged`` with a run in which 2 % of the operators
of every step are moved, renamed or inserted, and in whose last step one operator has another argument. Every
comparison is a process of its own on one core, with the package compiled; seconds are those of the whole process, the
median of the rounds, and ``start_s`` is what importing takes of them. The comparison must name the changed operator.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.benchmarks.synthetic import OPERATORS, Step, edited, write_trace

_SIZES: Final = (100_000, 300_000, 1_000_000)
_CHILD: Final = """
import json, resource, sys
from opguard_ci.cli import main
code = main(["compare", "--json", *sys.argv[1:]])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak, file=sys.stderr)
sys.exit(code)
"""


def main() -> None:
    """Measure all sizes and print the line."""
    parser = argparse.ArgumentParser(description="Measure a comparison of long traces.")
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    step = Step.random(options.seed)
    line: dict[str, Any] = {"start_s": _start(options.rounds), "sizes": []}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as scratch:
            line["sizes"].append(_measured(step, size, options, Path(scratch)))
    line |= {"rounds": options.rounds, "python": platform.python_version(), "pyarrow": pa.__version__}
    print(json.dumps(line | {"cpus": os.cpu_count()}))


def _measured(step: Step, size: int, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    steps = size // OPERATORS
    other, change = edited(step, options.seed)
    good, same, bad = (scratch / name for name in ("good", "same", "bad"))
    write_trace(good, step, steps)
    shutil.copytree(good, same)
    write_trace(bad, other, steps, change)
    found: dict[str, Any] = {"operators": steps * OPERATORS, "bytes": (good / "events-0.arrows").stat().st_size}
    for name, candidate in (("identical", same), ("diverged", bad)):
        rounds = [_compared(good, candidate) for _ in range(options.rounds)]
        for _, document, _ in rounds:
            assert document["verdict"] == name, document
        first = rounds[0][1]["first_divergence"]
        assert first is None or (first["step"], first["op"], first["cause"]) == (steps - 1, change.op, "arguments"), (
            first
        )
        found[f"{name}_s"] = round(statistics.median(seconds for seconds, _, _ in rounds), 2)
        found[f"{name}_peak_mb"] = max(peak for _, _, peak in rounds) // 1024
    return found


def _compared(reference: Path, candidate: Path) -> tuple[float, dict[str, Any], int]:
    """Seconds, the object, and the peak of memory in KiB."""
    begun = time.perf_counter()
    done = _on_one_core([sys.executable, "-c", _CHILD, str(reference), str(candidate)])
    seconds = time.perf_counter() - begun
    return seconds, json.loads(done.stdout), int(done.stderr.split()[-1])


def _start(rounds: int) -> float:
    """Seconds that a process takes to import what a comparison needs; the first time compiles it."""
    imports = "import opguard_ci.cli, opguard_ci.commands.compare, opguard_ci.compare.verdict, opguard_ci.trace.reader"
    taken = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        _on_one_core([sys.executable, "-c", imports])
        taken.append(time.perf_counter() - begun)
    return round(statistics.median(taken[1:]), 2)


def _on_one_core(command: list[str]) -> subprocess.CompletedProcess[str]:
    core = min(os.sched_getaffinity(0))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        ["taskset", "--cpu-list", str(core), *command], capture_output=True, text=True, check=False, env=environment
    )


if __name__ == "__main__":
    main()
