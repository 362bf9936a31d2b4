"""Runs a target as it is now and as its reference was, and compares: what check, the pytest plugin and bisect share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .compare.verdict import compare_traces
from .config import Config, load_config
from .errors import UsageError
from .trace.reader import read_trace
from .worker.commits import Commits, Job, Run
from .worker.git import Repository


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of one target: the object of ``compare`` with what it was compared with."""

    target: str
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The verdict's name."""
        return str(self.document["verdict"])


class Project:
    """A checkout with its settings. Open it as a context manager: it holds a git reader and a tree of the cache."""

    def __init__(self, cwd: str | os.PathLike[str]) -> None:
        self.repository = Repository(cwd)
        self.root: Path = self.repository.root
        self.config: Config = load_config(self.root)
        self.commits = Commits(self.repository, self.config)

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *_: object) -> None:
        self.commits.close()
        self.repository.close()


def compare_runs(reference: Run, candidate: Run) -> dict[str, Any]:
    """The verdict object about two runs; ``untestable`` where one of them did not come to its end.

    A run that broke off is still compared as far as it came: a difference before that is a difference.
    """
    for side, run in (("reference", reference), ("candidate", candidate)):
        if not (run.trace / "manifest.json").exists():
            return untestable(side, run)
    document = compare_traces(read_trace(run_path(reference)), read_trace(run_path(candidate))).to_json()
    if document["verdict"] in ("identical", "equivalent"):
        for side, run in (("reference", reference), ("candidate", candidate)):
            if not run.testable:
                return untestable(side, run)
    return document


def run_path(run: Run) -> str:
    """The trace of a run, as text."""
    return str(run.trace)


def untestable(side: str, run: Run) -> dict[str, Any]:
    """The verdict object for a run that could not be made."""
    outcome = run.result.outcome
    return {
        "schema": 1,
        "verdict": "untestable",
        "reference": {"commit": run.commit if side == "reference" else None, "environment": None},
        "candidate": {"commit": run.commit if side == "candidate" else None, "environment": None},
        "first_divergence": None,
        "contract": [],
        "transient": [],
        "findings": [],
        "structure": {"inserted": 0, "removed": 0, "moved": 0},
        "coverage": outcome.get("coverage", {}),
        "notes": [f"{side}: {run.reason}", *outcome.get("notes", ())],
        "error": {
            "side": side,
            "slug": outcome.get("slug", "untestable"),
            "message": outcome.get("message", ""),
            "traceback": outcome.get("traceback", ""),
        },
    }


def against_commit(project: Project, job: Job, revision: str) -> Checked:
    """Compare the working tree with a commit that is run again here, or was before under the same conditions.

    Raises:
        UsageError: The revision names no commit, or the clone is too shallow to have it.

    """
    commit = project.repository.resolve(revision)
    reference = project.commits.at(job, commit)
    candidate = project.commits.here(job)
    document = compare_runs(reference, candidate)
    document["reference"] = {**document["reference"], "kind": "commit", "commit": commit, "cached": reference.cached}
    return Checked(job.target, document)


def targets_of(project: Project, given: Sequence[str], cwd: str) -> list[Job]:
    """The jobs for the given targets, or for the project's configured recipes."""
    if given:
        return [Job(target, cwd) for target in given]
    if not project.config.recipes:
        raise UsageError(
            "no-targets",
            "No target was given and [tool.opguard] recipes is empty: name a target, or list your recipes.",
        )
    return [Job(target, str(project.root)) for target in project.config.recipes]
