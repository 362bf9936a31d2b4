"""One session's project, and the check of one test: its reference, then the working tree, then the comparison."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from pytest_opguard.settings import Settings

if TYPE_CHECKING:
    from opguard_ci.guard import Project
    from opguard_ci.reference import Reference, Wanted
    from opguard_ci.worker.commits import Run
    from opguard_ci.worker.places import Job
    from pytest_opguard.runs import RecipeRuns

GUARD: Final = pytest.StashKey["Guard"]()


@dataclass(frozen=True, slots=True)
class Base:
    """What a test will be compared with: the choice, and the run where a commit was chosen."""

    job: Job
    chosen: Reference
    run: Run | None = None

    def settled(self) -> Job:
        """The job at the level that the reference was recorded at."""
        from opguard_ci.guard import at_level_of, at_level_of_run

        if self.chosen.golden is not None:
            return at_level_of(self.job, self.chosen.golden.trace)
        return self.job if self.run is None else at_level_of_run(self.job, self.run)


class Guard:
    """The project of a pytest session. It is opened by the first test that is guarded, and not by importing this."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.settings = settings
        self._root = config.rootpath
        self._config = config
        self._project: Project | None = None
        self._runs: dict[str, RecipeRuns] = {}

    @property
    def project(self) -> Project:
        """The project; its recipes run in children of the fork server.

        Raises ``UsageError`` where there is no usable checkout or its settings are wrong.
        """
        if self._project is None:
            from opguard_ci.guard import Project
            from pytest_opguard.runs import RecipeRuns

            golden = self.settings.golden
            project = Project(self._root, golden=None if golden is None else str(golden), runs=RecipeRuns)
            self._runs["RecipeRuns"] = cast("RecipeRuns", project.commits)
            self._project = project
        return self._project

    def variant(self, kind: type[RecipeRuns]) -> Project:
        """The project with another way to run its targets."""
        variant = copy.copy(self.project)
        runs = self._runs.get(kind.__name__)
        if runs is None:
            runs = self._runs[kind.__name__] = kind(variant.repository, variant.config)
        variant.commits = runs
        return variant

    def close(self) -> None:
        """Let go of trees, scratch folders and the git reader."""
        for runs in self._runs.values():
            runs.close()
        if self._project is not None:
            self._project.repository.close()

    @property
    def cwd(self) -> str:
        """The folder that targets are relative to: the caller's, if it lies in the project."""
        caller = self._config.invocation_params.dir
        return str(caller if caller.resolve().is_relative_to(self.project.root.resolve()) else self._root)

    def wanted(self, settings: Settings) -> Wanted:
        """What the options ask for."""
        from opguard_ci.reference import Wanted

        return Wanted(settings.reference, settings.missing)

    def validate(self) -> None:
        """Refuse what cannot hold for any test of the session. Raises ``UsageError``."""
        if self.settings.reference is not None:
            self.project.repository.resolve(self.settings.reference)
        if self.settings.bless is not None:
            from opguard_ci.bless import BlessOptions, bless

            bless(self.project, [], BlessOptions(self.settings.bless))

    def base(self, project: Project, job: Job, wanted: Wanted, file: Path | None = None) -> Base:
        """The reference of a job, run now if it is a commit that was not run before.

        ``file``: what the working tree lends to a commit that lacks it, where the target itself does not name it.
        """
        from opguard_ci.store.recipes import recipe_id

        key = project.commits.environment_key(project.commits.server(job), project.commits.places.ranks(job))
        chosen = project.references.choose(recipe_id(job.target, job.cwd, str(project.root)), key, wanted)
        if chosen.golden is not None or chosen.commit is None:
            return Base(job, chosen)
        if file is not None:
            job = _with_file_pinned(project, job, file, chosen.commit)
        return Base(job, chosen, project.commits.at(job, chosen.commit))

    def is_kept(self, job: Job, commit: str) -> bool:
        """Whether the commit's run of a job need not be measured again."""
        return self._runs["RecipeRuns"].is_kept(job, commit)

    def check(self, project: Project, base: Base, wanted: Wanted) -> dict[str, Any]:
        """The verdict object of a job whose reference is known."""
        from opguard_ci.guard import check

        document = check(project, base.job, wanted).document
        if self._config.getoption("usepdb", False) and document["verdict"] in ("diverged", "environment"):
            document = self._stopped_live(project, base.job, wanted)
        if base.run is not None and "cached" in document["reference"]:
            document["reference"]["cached"] = base.run.cached
        for side in ("reference", "candidate"):
            document[side].pop("trace", None)  # gone when the session ends
        return document

    def _stopped_live(self, project: Project, job: Job, wanted: Wanted) -> dict[str, Any]:
        """Check again in children, where all pins hold, and hand the terminal to a debugger that stops at the operator.

        The verdict is that of the children: what an open session has switched on differs from no reference.
        """
        from opguard_ci.evidence.live import stop_checked
        from opguard_ci.guard import check
        from pytest_opguard.runs import TestRuns

        if isinstance(project.commits, TestRuns):
            project.commits.recorded = None
        else:
            project = self.project
        document = check(project, job, wanted).document
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend(in_=True)
        try:
            stop_checked(project.commits, job, document)
        finally:
            if capture is not None:
                capture.resume()
        return document


def profile_of(project: Project, job: Job, own: str, asked: str | None) -> str:
    """The profile of a recipe: asked for, its own, the project's, or strict; ``own`` is what its decorator holds."""
    if asked is not None:
        return asked
    if own != "strict" or project.commits.places.declared(job).profile is not None:
        return own
    return project.config.profile or "strict"


def _with_file_pinned(project: Project, job: Job, file: Path, commit: str) -> Job:
    """The job with ``file`` laid over a commit that has none, as guard does for a target that names its file."""
    if not file.resolve().is_relative_to(project.root.resolve()):
        return job
    place = os.fsencode(file.resolve().relative_to(project.root.resolve()))
    if any(entry.path == place for entry in project.repository.entries(commit)):
        return job
    return replace(job, pins=(str(file),))
