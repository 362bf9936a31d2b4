"""How the tests of a session are run: guard's runs of commits, with runs in pytest's own process and by pytest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from opguard_ci.worker.commits import Commits, Run
from opguard_ci.worker.in_process import InProcess
from opguard_ci.worker.places import Job
from opguard_ci.worker.request import RunResult

TEST_ENTRY = "pytest_opguard.reference:execute"


class RecipeRuns(Commits):
    """Runs of recipes."""

    def is_kept(self, job: Job, commit: str) -> bool:
        """Whether the commit's run need not be measured again."""
        laid, _ = self.places.overlay(job, commit)
        key = self._key(job, commit, laid, None, 0)
        return self._runs.find(key, self.environment_key(self.server(job), self.places.ranks(job))) is not None


class InProcessRuns(InProcess, RecipeRuns):
    """Runs of the working tree in this process. They cannot be repeated in another one and be the same run."""

    def here(self, job: Job, *, instance: int = 0, check_finite: bool = False, keep: Path | None = None) -> Run:
        """Run the target here and now; its errors pass by whoever holds the target (``node.holding``)."""
        if instance or keep is not None:
            return _not_repeated()
        return super().here(job, check_finite=check_finite)


class TestRuns(RecipeRuns):
    """Runs of an ordinary test: pytest runs it in the child, and its ``opguard`` fixture records."""

    __test__ = False
    entry = TEST_ENTRY
    recorded: Run | None = None
    """The candidate, recorded in this process while the test ran; None: it is run in a child."""

    def here(self, job: Job, *, instance: int = 0, check_finite: bool = False, keep: Path | None = None) -> Run:
        """What was recorded; for ``instance`` 1, or to keep something, a run in a child."""
        if instance == 0 and keep is None and self.recorded is not None:
            return self.recorded
        return super().here(job, instance=instance, check_finite=check_finite, keep=keep)


def _not_repeated() -> Run:
    outcome: dict[str, Any] = {"message": "A run in pytest's process is made once.", "notes": []}
    return Run(Path(os.devnull), RunResult("untestable", outcome, os.devnull, 0.0), None)
