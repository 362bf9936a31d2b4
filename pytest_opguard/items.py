"""The test that a recipe is: run at its reference in the setup phase, in the working tree in the call, compared."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from opguard_ci.recipe import options_of
from pytest_opguard.guarding import GUARD, Base, profile_of
from pytest_opguard.outcome import bisect_line, conclude, explained, keep
from pytest_opguard.settings import Settings, settings_of

if TYPE_CHECKING:
    from opguard_ci.guard import Project
    from opguard_ci.worker.places import Job

_IMPORT_FAILED: Final = re.compile(r"raised (ImportError|ModuleNotFoundError)\b")


class RecipeItem(pytest.Function):
    """A recipe, perhaps with parameters. No fixture is set up for it: none would reach the process it runs in."""

    _base: Base

    @property
    def asked(self) -> Settings:
        """The options that hold for this test."""
        return settings_of(self, self.config.stash[GUARD].settings)

    @property
    def project(self) -> Project:
        """The project, with runs where the options want them."""
        guard = self.config.stash[GUARD]
        if not guard.settings.in_process:
            return guard.project
        from pytest_opguard.runs import InProcessRuns

        return guard.variant(InProcessRuns)

    def job(self, *, as_node: bool | None = None) -> Job:
        """How the recipe is run: as a target of its file, or as a pytest node where only pytest knows how.

        ``as_node`` None: as a node if it has parameters, or is run or measured in a way that needs pytest.
        """
        from opguard_ci.worker.places import Job
        from pytest_opguard import node

        guard, options = self.config.stash[GUARD], options_of(self.obj)
        assert options is not None
        project, settings, cwd = guard.project, self.asked, guard.cwd
        place = os.path.relpath(self.path, cwd)
        if place.startswith(os.pardir) and not self.path.resolve().is_relative_to(project.root.resolve()):
            place = str(self.path)
        job = Job(
            f"{place}:{self.originalname}",
            cwd,
            level=settings.level or (options.level if options.level != "auto" else project.config.level),
            timeout=options.timeout if options.timeout != 600 else project.config.timeout,
            ranks=options.ranks,
        )
        profile = profile_of(project, job, options.profile, settings.profile)
        if as_node is None:
            as_node = hasattr(self, "callspec") or guard.settings.in_process or node.is_measured()
        if not as_node:
            return replace(job, profile=profile)
        arguments = node.arguments_for(self.config, f"{place}::{self.name}", cwd)
        return replace(job, target=node.target_of(arguments[-1]), argv=arguments, profile=profile)

    def setup(self) -> None:
        """Find the reference and run it, unless it was run before: one that cannot be run is an error, no failure."""
        settings = self.asked
        if settings.bless is not None:
            return
        document = None
        with explained(self):
            self._base = self._find(self.job())
            if _failed_to_import(self._base):
                other = self._find(self.job(as_node=True))
                self._base = other if other.run is not None and other.run.testable else self._base
            document = untestable_reference(self._base)
        if document is not None:
            conclude(self, {"nodeid": self.nodeid, **document}, settings)

    def runtest(self) -> None:
        """Run the working tree's recipe, compare, and fail by the verdict."""
        guard, settings = self.config.stash[GUARD], self.asked
        errors: list[BaseException] = []
        with explained(self):
            if settings.bless is not None:
                document = self._bless(settings.bless)
            elif guard.settings.in_process:
                from pytest_opguard import node

                with node.holding(self._base.job.argv[-1], self, errors):
                    document = guard.check(self.project, self._base, guard.wanted(settings))
            else:
                document = self._check()
            document = {"nodeid": self.nodeid, **document}
        if errors:  # as it was raised, for --pdb and with pytest's own traceback
            keep(self, document)
            raise errors[0]
        conclude(self, document, settings, self._advice(document, settings))

    def _find(self, job: Job) -> Base:
        guard = self.config.stash[GUARD]
        return guard.base(self.project, job, guard.wanted(self.asked), self.path if job.argv else None)

    def _check(self) -> dict[str, Any]:
        guard = self.config.stash[GUARD]
        wanted = guard.wanted(self.asked)
        document = guard.check(self.project, self._base, wanted)
        message = str((document.get("error") or {}).get("message"))
        if not self._base.job.argv and _IMPORT_FAILED.search(message):
            base = self._find(self.job(as_node=True))
            again = guard.check(self.project, base, wanted)
            if (again.get("error") or {}).get("slug") not in ("not-collected", "target-raised"):
                self._base, document = base, again
        return document

    def _bless(self, reason: str) -> dict[str, Any]:
        from opguard_ci.bless import BlessOptions, bless

        (document,) = bless(self.config.stash[GUARD].project, [self.job()], BlessOptions(reason))
        return document

    def _advice(self, document: dict[str, Any], settings: Settings) -> str:
        """The last line of the report: how to find the commit, or how to make the golden that is missing."""
        if settings.bless is not None:
            return ""
        guard, job = self.config.stash[GUARD], self._base.job
        if document["verdict"] == "no-reference":
            words = ["opguard", "bless", job.target, *(("--", *job.argv) if job.argv else ())]
            return (
                f"Record its golden on a clean tree: pytest --opguard-bless=REASON, or {shlex.join(words)} --reason …"
            )
        return bisect_line(guard.project, job, document, job.profile if job.argv or settings.profile else None)


def untestable_reference(base: Base) -> dict[str, Any] | None:
    """The verdict object about a reference that could not be run; None if it could."""
    if base.run is None or base.run.testable:
        return None
    from opguard_ci.guard import untestable

    document = untestable("reference", base.run)
    document["reference"] |= {"kind": "commit", "cached": base.run.cached}
    return document


def _failed_to_import(base: Base) -> bool:
    return base.run is not None and bool(_IMPORT_FAILED.search(base.run.reason)) and not base.job.argv
