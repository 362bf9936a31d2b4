"""Measures the fingerprint of device tensors: bandwidth beside torch's own reductions, and what a launch costs.

``python tests/benchmarks/fingerprint.py [--rounds 15]``, on a CUDA machine. Prints one JSON line.

Bandwidths are bytes read over the device's time, the median over rounds in which all contestants take turns, each
reading other memory than in the round before. Host times are the median of batches of calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from opguard_ci.capture.fingerprint.cuda import DeviceFingerprints
from tests.benchmarks.machine import machine

SIZES = {"256 MB": 256 << 20, "2 GB": 2 << 30}
SETS = 3
CALLS = 500


def main() -> None:
    """Measure and print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    fingerprints = DeviceFingerprints(sys.exit)
    line: dict[str, object] = {"bandwidth_TB_s": {}, "ratio_to_sum": {}, "host_us": {}}
    for name, nbytes in SIZES.items():
        rates = bandwidth(fingerprints, nbytes, options.rounds)
        line["bandwidth_TB_s"][name] = {key: round(statistics.median(r), 3) for key, r in rates.items()}  # type: ignore[index]
        ratios = [ours / theirs for ours, theirs in zip(rates["ours"], rates["sum"], strict=True)]
        line["ratio_to_sum"][name] = round(statistics.median(ratios), 3)  # type: ignore[index]
    line["host_us"] = host(fingerprints)
    print(json.dumps(line | {"rounds": options.rounds} | machine()))


def bandwidth(fingerprints: DeviceFingerprints, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """TB/s of each contestant in each round."""
    sets = [torch.randn(nbytes // 4, device="cuda") for _ in range(SETS)]
    square = int((nbytes // 2) ** 0.5) // 64 * 64
    contestants: dict[str, Callable[[torch.Tensor], object]] = {
        "sum": torch.sum,
        "sum of int64": lambda x: x.view(torch.int64).sum(),
        "hash_tensor": torch.hash_tensor,
        "ours": fingerprints.queue,
        "ours, unaligned": lambda x: fingerprints.queue(x[1:]),
        "ours, bf16 transposed": lambda x: fingerprints.queue(
            x.view(torch.bfloat16)[: square * square].view(square, square).t()
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-2, rounds):
        for name, call in contestants.items():
            data = sets[number % SETS]
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call(data)
            end.record()
            end.synchronize()
            if number >= 0:
                size = square * square * 2 if "transposed" in name else nbytes
                rates[name].append(size / begin.elapsed_time(end) / 1e9)
    fingerprints.end_step().wait()
    return rates


def host(fingerprints: DeviceFingerprints) -> dict[str, float]:
    """Microseconds of the host per call, on small tensors."""
    x = torch.randn(1000, device="cuda")
    square = torch.randn(64, 64, device="cuda").t()
    four, many = [x.clone() for _ in range(4)], [x.clone() for _ in range(600)]
    calls: dict[str, Callable[[], object]] = {
        "torch.add": lambda: torch.add(x, x),
        "torch.sum": lambda: torch.sum(x),
        "queue": lambda: fingerprints.queue(x),
        "queue a transposed one": lambda: fingerprints.queue(square),
        "queue_all of 4": lambda: fingerprints.queue_all(four),
        "queue_all of 600": lambda: fingerprints.queue_all(many),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(8):
        for name, call in calls.items():
            count = CALLS if "600" not in name else 10
            start = time.perf_counter()
            for _ in range(count):
                call()
            if number:
                times[name].append((time.perf_counter() - start) / count * 1e6)
            torch.cuda.synchronize()
            fingerprints.end_step().wait()
    return {name: round(statistics.median(taken), 2) for name, taken in times.items()}


if __name__ == "__main__":
    main()
