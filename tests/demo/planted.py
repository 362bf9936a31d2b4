"""The demo's project before and after one change, without a history around it."""

from __future__ import annotations

import difflib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_ci.compare import compare_traces
from opguard_ci.demo.changes import CHANGES, TARGET, Change, project
from opguard_ci.trace.reader import read_trace
from opguard_ci.worker import client
from opguard_ci.worker.request import RunRequest


@dataclass(frozen=True, slots=True)
class Planted:
    """The project before and after a change: paths to texts, and the lines of ``change.file`` that differ.

    ``line`` is the number of the first of them, before the change.
    """

    files_before: dict[str, str]
    files_after: dict[str, str]
    change: Change
    line: int
    removed: tuple[str, ...]
    added: tuple[str, ...]

    def is_found_in(self, verdict: dict[str, Any]) -> bool:
        """Whether the object that compare prints names what was planted."""
        if self.change.op is None:
            return verdict["verdict"] in {"identical", "equivalent"}
        first = verdict["first_divergence"]
        return verdict["verdict"] == "diverged" and any(
            op in {first["op"], first.get("computes")} for op in (self.change.op, self.change.partner) if op
        )


def plant(seed: int) -> Planted:
    """Change the project in the way that ``seed`` picks: seeds 0, 1, 2, … go through all kinds in turn."""
    change = CHANGES[seed % len(CHANGES)]
    new = random.Random(seed).choice(change.new)
    before = project()
    text = before[change.file]
    changed = text.replace(change.old, new)
    diff = list(difflib.ndiff(text.splitlines(), changed.splitlines()))
    removed = tuple(line[2:] for line in diff if line.startswith("- "))
    added = tuple(line[2:] for line in diff if line.startswith("+ "))
    pairs = zip(text.splitlines(), changed.splitlines(), strict=False)
    line = next(number for number, (old, new) in enumerate(pairs, start=1) if old != new)
    return Planted(before, before | {change.file: changed}, change, line, removed, added)


def compare_versions(planted: Planted, folder: Path) -> dict[str, Any]:
    """Write the project before and after its change, run both under capture, and compare the traces."""
    traces = []
    for name, files in (("before", planted.files_before), ("after", planted.files_after)):
        home = folder / name
        for path, text in files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text, encoding="utf-8")
        trace = folder / f"trace-{name}"
        result = client.run(RunRequest(TARGET, cwd=str(home), output=str(trace), root=str(home)))
        assert result.status == "ok", result.outcome
        traces.append(read_trace(str(trace)))
    return compare_traces(*traces).to_json()
