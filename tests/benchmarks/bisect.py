"""Measures ``opguard bisect`` against ``git bisect run`` with a plain golden test, and prints one JSON line.

``python tests/benchmarks/bisect.py [--commits 64] [--bad 40] [--slow 0] [--rounds 3] [--jobs 1]``

Three searches of the same history in turn in every round: ``git`` (``git bisect run python -m pytest -q
test_golden.py`` in a fresh clone), ``cold`` (opguard with no server running and an empty cache) and ``kept`` (the
servers are running, the cache of runs is empty). With ``--jobs 2``, ``cold`` and ``kept`` are measured against the same
with one job instead. Each figure is the median of the rounds; a ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def main() -> None:
    """Run all rounds and print the line."""
    parser = argparse.ArgumentParser(description="Measure a bisection against git bisect run.")
    parser.add_argument("--commits", type=int, default=64)
    parser.add_argument("--bad", type=int, default=40)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that each training step takes at least")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        history = Path(scratch) / "history"
        command = [sys.executable, str(DATA / "make_history.py"), str(history), "--commits", str(options.commits)]
        command += ["--bad", str(options.bad), "--slow", str(options.slow)]
        ends = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rounds = [one_round(history, ends, Path(scratch), options) for _ in range(options.rounds)]
    line: dict[str, Any] = {"commits": options.commits, "slow": options.slow, "jobs": options.jobs, "rounds": rounds}
    for name in [name for name in rounds[0] if name != "runs"]:
        line[f"{name}_s"] = round(statistics.median(one[name] for one in rounds), 2)
    for name in ("cold", "kept"):
        if options.jobs > 1:
            line[f"{name}_ratio"] = round(statistics.median(one[name] / one[f"{name}_alone"] for one in rounds), 3)
        else:
            line[f"{name}_speedup"] = round(statistics.median(one["git"] / one[name] for one in rounds), 2)
    line["runs"] = max(one["runs"] for one in rounds)
    line["runs_allowed"] = math.ceil(math.log2(options.commits)) + 6
    line |= {"python": platform.python_version(), "cpus": os.cpu_count()}
    print(json.dumps(line))


def one_round(history: Path, ends: dict[str, str], scratch: Path, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of each search; all of them must name the right commit."""
    found: dict[str, float] = {}
    if options.jobs == 1:
        found["git"] = by_git(history, ends, scratch / "clone")
    else:
        found["cold_alone"], found["kept_alone"], _ = cold_and_kept(history, ends, scratch / "cache", jobs=1)
    found["cold"], found["kept"], found["runs"] = cold_and_kept(history, ends, scratch / "cache", options.jobs)
    return found


def cold_and_kept(history: Path, ends: dict[str, str], cache: Path, jobs: int) -> tuple[float, float, int]:
    """Seconds with no server and an empty cache, seconds with running servers and no kept runs; the most runs."""
    cold, runs = by_opguard(history, ends, cache, jobs, idle="0")
    shutil.rmtree(cache)
    warm_up = [sys.executable, "-m", "opguard_ci", "history", f"{ends['good']}..{ends['good']}", "recipe.py:tiny"]
    environment = {**os.environ, "OPGUARD_CACHE": str(cache), "OPGUARD_SERVER_IDLE": "120"}
    subprocess.run(warm_up, cwd=history, env=environment, check=True, capture_output=True)
    by_opguard(history, ends, cache, jobs, idle="120")  # both servers run from here on
    shutil.rmtree(cache / "runs")
    kept, again = by_opguard(history, ends, cache, jobs, idle="120")
    shutil.rmtree(cache)  # ends the servers
    return cold, kept, max(runs, again)


def by_git(history: Path, ends: dict[str, str], clone: Path) -> float:
    """What people do today."""
    subprocess.run(["git", "clone", "-q", str(history), str(clone)], check=True)
    begun = time.perf_counter()
    subprocess.run(["git", "bisect", "start", ends["bad"], ends["good"]], cwd=clone, check=True, capture_output=True)
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_golden.py"]
    done = subprocess.run(["git", "bisect", "run", *test], cwd=clone, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    shutil.rmtree(clone)
    assert f"{ends['first_bad']} is the first bad commit" in done.stdout, done.stdout[-2000:]
    return seconds


def by_opguard(history: Path, ends: dict[str, str], cache: Path, jobs: int, *, idle: str) -> tuple[float, int]:
    """Seconds and runs of one bisection."""
    command = [sys.executable, "-m", "opguard_ci", "bisect", "--good", ends["good"], "--bad", ends["bad"]]
    command += ["--jobs", str(jobs), "recipe.py:tiny", "--json"]
    environment = {**os.environ, "OPGUARD_CACHE": str(cache), "OPGUARD_SERVER_IDLE": idle}
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=history, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    document = json.loads(done.stdout)
    assert document["first_bad"] == ends["first_bad"], (document, done.stderr[-2000:])
    return seconds, document["runs"]


if __name__ == "__main__":
    main()
