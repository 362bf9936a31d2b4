"""The verbs of the command line: one module each, and what all of them share.

A verb's module has ``NAME``, ``HELP``, ``add_arguments(parser)`` and ``run(args) -> Result``, and imports what is heavy
inside its functions: ``opguard --help`` loads all of these modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from opguard_ci.report.layout import Line

VERBS: Final = (
    "demo",
    "doctor",
    "run",
    "replay",
    "compare",
    "investigate",
    "check",
    "bless",
    "log",
    "prune",
    "bisect",
    "history",
    "show",
    "view",
    "tools",
)
"""Names of the modules in this package that are verbs, in the order of the help."""

EXIT_CODES: Final = {
    "identical": 0,
    "equivalent": 0,
    "ok": 0,
    "findings": 0,
    "found": 0,
    "diverged": 1,
    "environment": 3,
    "no-reference": 3,
    "unstable": 4,
    "untestable": 4,
    "candidates": 4,
    "nothing": 4,
}


@dataclass(frozen=True, slots=True)
class Result:
    """What a verb has to say: ``document`` for machines (``--json``), ``text`` for people, and the exit code."""

    document: dict[str, Any]
    text: tuple[Line, ...]
    exit_code: int


def exit_code(verdict: str, *, strict: bool = False) -> int:
    """Give the exit code of a verdict; ``strict`` lets ``equivalent`` fail."""
    return 1 if strict and verdict == "equivalent" else EXIT_CODES[verdict]
