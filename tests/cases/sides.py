"""Runs the two sides of a case, in each of its variants, and compares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opguard_ci.compare import compare_traces, single_run_findings
from opguard_ci.compare.traces import side_of
from opguard_ci.trace.reader import Trace, read_trace
from tests.cases import twins
from tests.cases.expectations import Case, base_name, problems

VARIANTS = ("original", "commented", "renamed", "swapped", "reordered", "mixed")
"""The program itself; its twins on both sides; good and bad swapped; bad run before good; bad only as a twin."""

SOURCE_OF = {"swapped": "original"}
"""Variants that have no source text of their own, and so share the runs of another."""

Run = Callable[[Path, str, Path, int], str]
"""(program, function, trace folder, server) -> what kept the run from its end, or nothing."""


@dataclass(frozen=True, slots=True)
class Examined:
    """One variant of a case: its verdict object, and what is wrong with it."""

    verdict: dict[str, Any]
    problems: list[str]


def as_shown(case: Case, first: Trace, second: Trace) -> Case:
    """A case of memory that nobody wrote, as two runs show it: in the first step in which its operators made other
    values. What such memory holds is chance, also in two runs with different heaps, and not always that of step 0.
    """
    made = [side_of(trace) for trace in (first, second)]
    for step in made[0].steps:
        values = [
            [
                write.value
                for event in side.view(step).events
                if base_name(event.op) in case.operators
                for write in event.writes
            ]
            for side in made
        ]
        if values[0] != values[1]:
            return replace(case, constants={**case.constants, "EXPECT_STEP": step})
    return case


@dataclass(slots=True)
class Sides:
    """The traces of one case; a run that two variants share is made once."""

    case: Case
    folder: Path
    run: Run
    traces: dict[tuple[Path, str, int], Path] = field(default_factory=dict)

    def examine(self, variant: str) -> Examined:
        """The verdict about a variant, after as many attempts as the case allows."""
        for attempt in range(self.case.attempts):
            examined = self._examine(variant, attempt)
            if not examined.problems:
                break
        return examined

    def _examine(self, variant: str, attempt: int) -> Examined:
        names = ("good", "bad") if self.case.is_pair else ("run", "run")
        sources = ("original", "renamed") if variant == "mixed" else (SOURCE_OF.get(variant, variant),) * 2
        sides = [
            (side, self._program(source), name) for side, (source, name) in enumerate(zip(sources, names, strict=True))
        ]
        traces: dict[int, Path] = {}
        for side, program, name in reversed(sides) if variant == "reordered" else sides:
            failure = self._trace(program, name, side + 2 * attempt)
            if failure:
                return Examined({"verdict": "untestable"}, [] if self.case.verdict == "observer" else [failure])
            traces[side] = self.traces[program, name, side + 2 * attempt]
        changed = read_trace(traces[1])
        pair = (read_trace(traces[0]), changed)
        swapped = variant == "swapped"
        verdict = compare_traces(*(reversed(pair) if swapped else pair)).to_json()
        case = as_shown(self.case, *pair) if self.case.verdict == "transient" else self.case
        return Examined(verdict, problems(case, verdict, single_run_findings(changed), swapped=swapped))

    def _program(self, source: str) -> Path:
        text = self.case.path.read_text()
        if source in {"commented", "renamed"}:
            text = twins.commented(text) if source == "commented" else twins.renamed(text)
        home = self.folder / source
        home.mkdir(parents=True, exist_ok=True)
        program = home / self.case.path.name
        program.write_text(text)
        return program

    def _trace(self, program: Path, name: str, run: int) -> str:
        if (program, name, run) in self.traces:
            return ""
        output = program.parent / f"{name}-{run}"
        # Two forks of one server are too much alike to show that a program does not repeat itself.
        failure = self.run(program, name, output, 0 if self.case.is_pair else run % 2)
        if not failure:
            self.traces[program, name, run] = output
        return failure
