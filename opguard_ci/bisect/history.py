"""The class of every commit of a range."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Final

from opguard_ci.bisect.classes import Classes
from opguard_ci.bisect.driver import Progress
from opguard_ci.guard import Project
from opguard_ci.worker.commits import Commits, Run
from opguard_ci.worker.history import commits_between, describe
from opguard_ci.worker.places import Job

_MAX_NAMED: Final = 5


def history(project: Project, job: Job, first: str, last: str, jobs: int, progress: Progress) -> dict[str, Any]:
    """Run the commit ``first`` and all that ``last`` has beyond it; commits of one letter computed the same.

    Raises ``UsageError`` for revisions that name no commit and for clones that are too shallow.
    """
    repository = project.repository
    start, end = repository.resolve(first), repository.resolve(last)
    commits = [*describe(repository, [start]), *(commits_between(repository, start, end) if start != end else ())]
    contract = replace(job, level="contract")
    events = replace(job, level="auto" if job.level == "contract" else job.level)
    workers = [project.commits, *(Commits(repository, project.config) for _ in range(jobs - 1))]
    free: SimpleQueue[Commits] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def measure(commit: str) -> Run:
        worker = free.get()
        try:
            progress(f"running {commit[:12]}, one of {len(commits)} commits")
            return worker.at(contract, commit)
        finally:
            free.put(worker)

    classes = Classes(lambda run: project.commits.at(events, str(run.commit)))
    try:
        with ThreadPoolExecutor(jobs) as pool:
            runs = list(pool.map(measure, [commit.hash for commit in commits]))
    finally:
        for worker in workers[1:]:
            worker.close()
    rows = []
    for commit, run in zip(commits, runs, strict=True):
        label = classes.label(run)
        row: dict[str, Any] = {"commit": commit.hash, "subject": commit.subject, "class": label, "cached": run.cached}
        if label is None:
            row["reason"] = run.reason
        rows.append(row)
    return {
        "schema": 1,
        "verdict": "ok",
        "target": job.target,
        "commits": rows,
        "runs": sum(not run.cached for run in runs),
        "cached": sum(run.cached for run in runs),
        "notes": _notes(runs),
    }


def _notes(runs: list[Run]) -> list[str]:
    """What was noted of runs, each with the commits of which it was."""
    commits: dict[str, list[str]] = {}
    for run in runs:
        for note in run.result.outcome.get("notes", ()):
            commits.setdefault(note, []).append(str(run.commit)[:12])
    return [note if len(found) == len(runs) else f"{_named(found)}: {note}" for note, found in commits.items()]


def _named(commits: list[str]) -> str:
    more = len(commits) - _MAX_NAMED
    return ", ".join(commits[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
