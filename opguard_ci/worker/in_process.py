"""Runs of the working tree in the caller's own process, where a debugger can be attached."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from opguard_ci.worker import client
from opguard_ci.worker.commits import Commits, Run
from opguard_ci.worker.places import Job


class InProcess(Commits):
    """Runs of the working tree in this process, for a debugger; repetitions of them in a child, as ever."""

    def here(self, job: Job, *, instance: int = 0, check_finite: bool = False, keep: Path | None = None) -> Run:
        """Run the target here and now."""
        if instance or keep is not None:
            return super().here(job, instance=instance, check_finite=check_finite, keep=keep)
        request = replace(self.request(job), check_finite=check_finite)
        os.environ.update(self.config.env)
        result = client.run_in_process(request)
        return Run(Path(request.output), result, request.commit)
