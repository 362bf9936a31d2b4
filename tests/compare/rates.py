"""Measures how often verdicts name random faults: ``python tests/compare/rates.py [--seeds N] [--show] …``."""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from opguard_ci.compare import compare_traces
from tests.compare.edits import FAULTS, edited
from tests.compare.judging import Judgement, example, judge, same_contract
from tests.compare.programs import random_program
from tests.compare.running import run


def main() -> int:
    """Print one line per kind of fault, without and with neutral edits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(("neutral", *FAULTS)))
    parser.add_argument("--edits", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--level", choices=("full", "op"), default="full")
    parser.add_argument("--show", action="store_true", help="say what was wrong")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("fault     edits     named   passing nothing verdict   place   cause   crash")
    for kind in options.kinds.split(","):
        for edits in {"no": (False,), "yes": (True,), "both": (False, True)}[options.edits]:
            if kind == "neutral" and not edits:
                continue
            _row(kind, edits, range(options.first, options.first + options.seeds), options)
    return 0


def _row(kind: str, edits: bool, seeds: range, options: argparse.Namespace) -> None:
    tally: Counter[tuple[str, bool]] = Counter()
    start = time.perf_counter()
    for seed in seeds:
        try:
            level = options.level
            found = _neutral(seed, level) if kind == "neutral" else _faulty(kind, edits, seed, level)
        except Exception:
            found = Judgement("crash", True, traceback.format_exc(limit=-3))
        if found is None:
            continue
        tally[found.outcome, found.reached] += 1
        if options.show and found.outcome not in ("right", "masked"):
            print(f"   {kind} {'edited' if edits else 'plain'} seed {seed}: {found.outcome}: {found.text}")

    def rate(reached: bool) -> str:
        sure = sum(n for (outcome, where), n in tally.items() if where == reached and outcome != "masked")
        return f"{tally['right', reached]}/{sure}"

    counts = {what: tally[what, True] + tally[what, False] for what in ("masked", "verdict", "place", "cause", "crash")}
    cells = [
        f"{kind:9} {'yes' if edits else 'no':5} {rate(True):>9} {rate(False):>9}",
        *(f"{n:7}" for n in counts.values()),
    ]
    print(*cells, f"{time.perf_counter() - start:6.0f} s", flush=True)


def _faulty(kind: str, edits: bool, seed: int, level: str) -> Judgement | None:
    case = example(random.Random(f"{kind} {edits} {seed}"), kind, edits=edits, level=level)
    return judge(case) if case is not None else None


def _neutral(seed: int, level: str) -> Judgement | None:
    rng = random.Random(f"neutral {seed}")
    program = random_program(rng)
    reference, candidate = run(program, level=level), run(edited(rng, program), level=level)
    if not same_contract(reference, candidate):
        return None
    verdict = compare_traces(reference, candidate)
    return Judgement("right" if verdict.passed else "verdict", False, str(verdict.first_divergence))


if __name__ == "__main__":
    sys.exit(main())
