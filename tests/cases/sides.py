"""Runs the two sides of a case, in each of its variants, and compares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_ci.compare import compare_traces, single_run_findings
from opguard_ci.trace.reader import read_trace
from tests.cases import twins
from tests.cases.expectations import Case, problems

VARIANTS = ("original", "commented", "renamed", "swapped", "reordered")

Run = Callable[[Path, str, Path, int], str]
"""(program, function, trace folder, server) -> what kept the run from its end, or nothing."""


@dataclass(frozen=True, slots=True)
class Examined:
    """One variant of a case: its verdict object, and what is wrong with it."""

    verdict: dict[str, Any]
    problems: list[str]


@dataclass(slots=True)
class Sides:
    """The traces of one case; a run that two variants share is made once."""

    case: Case
    folder: Path
    run: Run
    traces: dict[tuple[str, str, int], Path] = field(default_factory=dict)

    def examine(self, variant: str) -> Examined:
        """The verdict about a variant, after as many attempts as the case allows."""
        for attempt in range(self.case.attempts):
            examined = self._examine(variant, attempt)
            if not examined.problems:
                break
        return examined

    def _examine(self, variant: str, attempt: int) -> Examined:
        program = self._program(variant)
        names = ("good", "bad") if self.case.is_pair else ("run", "run")
        sides = list(enumerate(names))
        for side, name in reversed(sides) if variant == "reordered" else sides:
            failure = self._trace(program, name, side, attempt)
            if failure:
                return Examined({"verdict": "untestable"}, [] if self.case.verdict == "observer" else [failure])
        reference, candidate = (self.traces[program.parent.name, name, side + 2 * attempt] for side, name in sides)
        swapped = variant == "swapped"
        if swapped:
            reference, candidate = candidate, reference
        verdict = compare_traces(read_trace(reference), read_trace(candidate)).to_json()
        findings = single_run_findings(read_trace(reference if swapped else candidate))
        return Examined(verdict, problems(self.case, verdict, findings, swapped=swapped))

    def _program(self, variant: str) -> Path:
        source = self.case.path.read_text()
        if variant in {"commented", "renamed"}:
            source = twins.commented(source) if variant == "commented" else twins.renamed(source)
        home = self.folder / ("original" if variant == "swapped" else variant)
        home.mkdir(parents=True, exist_ok=True)
        program = home / self.case.path.name
        program.write_text(source)
        return program

    def _trace(self, program: Path, name: str, side: int, attempt: int) -> str:
        key = (program.parent.name, name, side + 2 * attempt)
        if key in self.traces:
            return ""
        output = program.parent / f"{name}-{side}-{attempt}"
        # Two forks of one server are too much alike to show that a program does not repeat itself.
        failure = self.run(program, name, output, 0 if self.case.is_pair else side)
        if not failure:
            self.traces[key] = output
        return failure
