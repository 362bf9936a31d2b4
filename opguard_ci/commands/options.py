"""The options that all verbs share which run a target."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from opguard_ci.capture.window import require_window
from opguard_ci.recipe import LEVELS, MAX_RANKS, PROFILES, own_ranks, parse_target, peek
from opguard_ci.worker.checkout import find_checkout

if TYPE_CHECKING:
    from opguard_ci.worker.request import Level, RunRequest


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add TARGET and how it is run."""
    parser.add_argument(
        "target", metavar="TARGET", help="package.module:function, path/file.py:function, or path/file.py (a script)"
    )
    add_run_settings(parser)


def add_run_settings(parser: argparse._ActionsContainer) -> None:
    """Add how a target is run."""
    parser.add_argument(
        "--level",
        choices=LEVELS,
        help="full: every operator with its inputs; op: inputs are not looked at but taken from what was written last; "
        "contract: only the values at step ends; auto: full or op, by how much a step reads "
        "(default: a recipe's own, else auto)",
    )
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help="strict: everything pinned (default of @recipe functions); portable: also what differs between CPUs; "
        "observe: nothing touched (default of all else)",
    )
    parser.add_argument("--steps", type=at_least(1), metavar="N", help="end the run after N steps")
    add_window_options(parser)
    add_ranks_option(parser)
    parser.add_argument("--allow-unseen", action="store_true", help="accept operators that capture could not see")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="end the run after S seconds (default: a recipe's own, else 600)"
    )


def add_window_options(parser: argparse._ActionsContainer) -> None:
    """Add the steps in which operators are recorded."""
    parser.add_argument(
        "--from-step",
        type=at_least(0),
        metavar="K",
        help="record operators from step K on, before it the contract alone (for faults late in a long run)",
    )
    parser.add_argument("--to-step", type=at_least(0), metavar="M", help="record operators up to step M, M included")


def add_ranks_option(parser: argparse._ActionsContainer) -> None:
    """Add the number of processes."""
    parser.add_argument(
        "--ranks",
        type=at_least(1, MAX_RANKS),
        metavar="N",
        help="run in N processes, started as torchrun would (default: a recipe's own, else 1)",
    )


def run_request(args: argparse.Namespace, folder: str) -> RunRequest:
    """The request for one run of the target that writes its trace to ``folder``."""
    from opguard_ci.worker.request import RunRequest

    cwd = Path.cwd()
    target = parse_target(args.target, str(cwd))  # a mistake in it is told before anything is started
    checkout = find_checkout(cwd)
    own = peek(target, target.search_path(str(cwd), checkout.root)).literals
    level = args.level or (own["level"] if own.get("level") in LEVELS else "auto")
    require_window(args.from_step, args.to_step, level)
    return RunRequest(
        target=args.target,
        argv=args.target_arguments,
        cwd=str(cwd),
        output=str(cwd / folder),
        level=cast("Level", level),
        from_step=args.from_step,
        to_step=args.to_step,
        profile=args.profile,
        steps=args.steps,
        allow_unseen=args.allow_unseen,
        timeout=args.timeout or (float(own["timeout"]) if type(own.get("timeout")) in (int, float) else 600.0),
        ranks=args.ranks or own_ranks(own),
        root=checkout.root,
        commit=checkout.commit,
        tree=checkout.tree,
        edits=checkout.edits,
    )


def at_least(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """An argument type: a whole number not below ``minimum``, nor above ``maximum``."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {minimum}")
        if maximum is not None and int(text) > maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {maximum}")
        return int(text)

    return number


def seconds(text: str) -> float:
    """An argument type: a number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number
