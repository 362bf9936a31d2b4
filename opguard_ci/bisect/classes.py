"""Tells commits apart by what their runs computed: equal classes trained alike, whatever things are called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from opguard_ci.compare.verdict import compare_traces
from opguard_ci.trace.reader import Trace, read_trace
from opguard_ci.worker.commits import Run

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Rerun = Callable[[Run], Run]
"""Makes a run of a commit again, with every operator recorded."""


class Classes:
    """The classes met so far, in order: A is that of the first run shown, which is the good commit's.

    Runs are compared at contract level. Where only the state of a generator differs, that level cannot know whether the
    same draws were made through another generator; then both commits are run again with events (``rerun``).
    """

    def __init__(self, rerun: Rerun) -> None:
        self._rerun = rerun
        self._members: list[tuple[str, Run, Trace]] = []

    def label(self, run: Run) -> str | None:
        """The class of a run; None if it did not come to its end."""
        if not run.testable:
            return None
        trace = read_trace(str(run.trace))
        for label, member, known in self._members:
            if self._alike(member, known, run, trace):
                return label
        label = letters(len(self._members))
        self._members.append((label, run, trace))
        return label

    def _alike(self, member: Run, known: Trace, run: Run, trace: Trace) -> bool:
        if _contract(known.manifest) == _contract(trace.manifest):
            return True
        document = compare_traces(known, trace).to_json()
        if document["verdict"] in ("identical", "equivalent"):
            return True
        if not _only_generators(known.manifest, trace.manifest):
            return False
        both = [self._rerun(each) for each in (member, run)]
        if not all(again.testable for again in both):
            return False
        return compare_traces(*(read_trace(str(again.trace)) for again in both)).passed


def letters(number: int) -> str:
    """0 -> A, 25 -> Z, 26 -> AA."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, len(_LETTERS))
        text = _LETTERS[rest] + text
    return text


def write_expected(trace: Path, file: Path) -> Path:
    """Write the contract digests of a trace for ``RunRequest.expected``: runs that differ stop there."""
    manifest = read_trace(str(trace)).manifest
    digests = {str(step["step"]): step["digests"].get("contract") for step in manifest["steps"]}
    file.write_text(json.dumps(digests, sort_keys=True))
    return file


def _contract(manifest: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    left_out = ("operators", "data", "gradients")
    return [
        (step["step"], {k: v for k, v in step["digests"].items() if k not in left_out}) for step in manifest["steps"]
    ]


def _only_generators(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether the contracts agree but for generator states (and names)."""

    def values(manifest: dict[str, Any]) -> list[tuple[int, Any]]:
        return [(step["step"], step["digests"].get("contract")) for step in manifest["steps"]]

    return values(left) == values(right)
