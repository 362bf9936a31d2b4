"""Compares fingerprinting a tensor of the host with copying it, and prints one JSON line.

``python -m tests.benchmarks.snapshot [--rounds 15]``

A snapshot that another thread could hash later has to be copied first, by the thread that computes. Both contestants
read a tensor that was just written, as outputs of operators are; the copy goes round through 64 MB, so that it does not
stay in cache, as snapshots that wait for a thread would not. Processor time, the least of all rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import time
from collections.abc import Callable

import torch

from opguard_ci.capture.fingerprint import cpu
from tests.benchmarks.machine import machine

MB = 1 << 20
RING = 64 * MB
SIZES = (MB // 16, MB // 4, MB, 4 * MB, 16 * MB)


def main() -> None:
    """Run all rounds and print the line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ring = torch.zeros(RING, dtype=torch.uint8)
    line: dict[str, object] = {}
    for size in SIZES:
        source = torch.zeros(size, dtype=torch.uint8)
        pieces, address = max(1, RING // size), source.data_ptr()
        targets = [ring.data_ptr() + number * size for number in range(pieces)]
        hash_ = functools.partial(cpu.of_memory, address, size, source.dtype)
        hashes: list[Callable[[], object]] = [hash_] * pieces
        copies: list[Callable[[], object]] = [
            functools.partial(ctypes.memmove, target, address, size) for target in targets
        ]
        rounds = [(seconds(source, hashes), seconds(source, copies)) for _ in range(options.rounds)]
        for name, taken in zip(("hash", "copy"), zip(*rounds, strict=True), strict=True):
            line[f"{name}_{size >> 10}_KB_GB_s"] = round(size / min(taken) / 1e9, 1)
    print(json.dumps(line | machine()))


def seconds(source: torch.Tensor, works: list[Callable[[], object]]) -> float:
    """Of processor time per piece of work, each behind a write of all of the source."""
    taken = 0.0
    for number, work in enumerate(works):
        source.fill_(number % 256)
        begin = time.process_time()
        work()
        taken += time.process_time() - begin
    return taken / len(works)


if __name__ == "__main__":
    main()
