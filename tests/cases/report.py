"""Prints what is found in each case and variant: ``tests/cases/report.py [--variants a,b] [--level op] [NAME…]``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cases.expectations import all_cases, more_cases
from tests.cases.served import run_side
from tests.cases.sides import VARIANTS, Examined, Sides


def main() -> int:
    """Print the table; 1 if anything in it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of case names; all cases if none is given")
    parser.add_argument("--variants", default=",".join(VARIANTS), help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--level", default="full", choices=("full", "op"))
    parser.add_argument("--keep", metavar="DIR", help="leave programs and traces there")
    options = parser.parse_args()
    os.environ.setdefault("OPGUARD_SERVER_IDLE", "0")  # a server that is kept would go on with the code of before
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for case in [*all_cases(), *more_cases()]:
            if options.names and not case.name.startswith(tuple(options.names)):
                continue
            sides = Sides(case, Path(options.keep or scratch) / case.name, partial(run_side, level=options.level))
            for variant in options.variants.split(","):
                try:
                    examined = sides.examine(variant)
                except Exception:
                    examined = Examined({"verdict": "crash"}, [traceback.format_exc(limit=-1)])
                tally["BAD" if examined.problems else "ok"] += 1
                print(row(case.name, variant, examined), flush=True)
    print(f"{tally['ok']} ok, {tally['BAD']} BAD")
    return 1 if tally["BAD"] else 0


def row(name: str, variant: str, examined: Examined) -> str:
    """One line of the table, with the reasons below it."""
    first = examined.verdict.get("first_divergence") or {}
    op = first.get("op") or "-"
    if first.get("computes") not in {None, first.get("op")}:
        op += f" ({first['computes']})"
    cells = f"{name:24} {variant:10} {examined.verdict['verdict']:11} {first.get('cause') or '-':15} {op:60}"
    line = f"{cells} step {first.get('step', '-')!s:3} {'BAD' if examined.problems else 'ok'}"
    return "\n      ".join([line, *examined.problems])


if __name__ == "__main__":
    sys.exit(main())
