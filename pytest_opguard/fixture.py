"""The fixture ``opguard``: steps of an ordinary test become a trace that is compared with the reference's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import pytest

from opguard_ci.errors import UsageError
from pytest_opguard.guarding import GUARD, Base
from pytest_opguard.items import untestable_reference
from pytest_opguard.outcome import bisect_line, conclude, explained
from pytest_opguard.settings import settings_of

if TYPE_CHECKING:
    from opguard_ci.worker.commits import Run
    from opguard_ci.worker.places import Job
    from opguard_ci.worker.request import RunResult
    from pytest_opguard.recorded import Recorded
    from pytest_opguard.runs import TestRuns

_RUNNERS: Final = frozenset(("pytest", "xdist", "execnet"))
FIXTURE: Final = pytest.StashKey["Opguard"]()
"""The fixture's object of an item that uses it."""


class Recorder(Protocol):
    """Where steps and their values go."""

    def begin(self) -> None:
        """The first step begins."""

    def record(self, values: dict[str, Any]) -> None:
        """Take values of the current step, as they are now."""

    def end_step(self) -> None:
        """The current step is over."""

    def stop(self) -> None:
        """No more steps come."""


class Step:
    """One step of a test. ``index`` counts from 0."""

    def __init__(self, index: int, recorded: Recorder) -> None:
        self.index = index
        self.is_recorded = False
        self._recorded = recorded

    def record(self, **values: Any) -> None:
        """Name values that must stay the same in this step, such as ``loss=loss, model=model``.

        Tensors, numbers, modules (parameters, buffers and gradients), optimizers, schedulers and containers of these;
        they are fingerprinted as they are now.

        Raises:
            UsageError: No value was given.

        """
        if not values:
            raise UsageError("nothing-recorded", "step.record() needs named values: step.record(loss=loss).")
        self.is_recorded = True
        self._recorded.record(values)


class Opguard:
    """What a test gets as ``opguard``."""

    def __init__(self, recorded: Recorder) -> None:
        self.recorded = recorded
        self.is_complete = False
        self._is_used = False

    def steps(self, number: int) -> Iterator[Step]:
        """Run the body of a ``for`` loop as steps; what ran before, since the fixture was set up, is their setup.

        Args:
            number: How many steps there are, at least 1.

        Raises:
            UsageError: The number is no positive one, steps were made before, or a step recorded nothing.

        """
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise UsageError("bad-steps", f"opguard.steps needs a whole number from 1, not {number!r}.")
        if self._is_used:
            raise UsageError("steps-again", "opguard.steps can be gone through once in a test.")
        self._is_used = True
        return self._go(number)

    def _go(self, number: int) -> Iterator[Step]:
        self.recorded.begin()
        for index in range(number):
            step = Step(index, self.recorded)
            yield step
            if not step.is_recorded:
                raise UsageError(
                    "nothing-recorded", f"Step {index} recorded nothing: call step.record(loss=loss, …) in each step."
                )
            self.recorded.end_step()
        self.recorded.stop()
        self.is_complete = True

    def require_complete(self) -> None:
        """Refuse to judge a test whose steps were not all made. Raises ``UsageError``."""
        if not self.is_complete:
            raise UsageError(
                "steps-not-finished",
                "The test uses the fixture opguard but did not go through all of its steps: "
                "for step in opguard.steps(4): …",
            )


class Guarded:
    """An ordinary test in the session that checks it: its reference before, its comparison after."""

    def __init__(self, item: pytest.Function) -> None:
        from opguard_ci.reference import in_ci
        from pytest_opguard.runs import TestRuns

        guard = item.config.stash[GUARD]
        self._item = item
        self._guard = guard
        self._asked = settings_of(item, guard.settings)
        self._project = guard.variant(TestRuns)
        self._runs = cast("TestRuns", self._project.commits)
        self._wanted = guard.wanted(self._asked)
        if self._wanted.missing is None and self._project.config.missing is None:
            # Goldens are of recipes, so that there is none cannot be held against a test.
            self._wanted = type(self._wanted)(self._wanted.commit, "reference" if in_ci() else "skip")
        self._base: Base
        self._recorded: Recorded

    @property
    def is_checked(self) -> bool:
        """Whether the test is compared with anything; goldens are recorded of recipes alone."""
        return self._asked.bless is None

    def job(self) -> Job:
        """How pytest runs this one test in a child."""
        from opguard_ci.worker.places import Job
        from pytest_opguard.node import arguments_for

        cwd, item = self._guard.cwd, self._item
        place = os.path.relpath(item.path, cwd)
        if not item.path.resolve().is_relative_to(self._project.root.resolve()):
            place = str(item.path)
        names = item.nodeid.partition("::")[2]
        level = self._asked.level or self._project.config.level
        argv = ("pytest", *arguments_for(item.config, f"{place}::{names}", cwd))
        return Job(place, cwd, argv, profile="observe", level=level)

    def prepare(self) -> Recorded:
        """Run the reference, and begin to record."""
        from pytest_opguard.recorded import Recorded

        document = None
        with explained(self._item):
            job = self.job()
            if self.is_checked:
                self._base = self._guard.base(self._project, job, self._wanted)
                document = untestable_reference(self._base)
                job = self._base.settled()
            request = self._runs.request(job)
        if document is not None:
            conclude(self._item, {"nodeid": self._item.nodeid, **document}, self._asked)
        self._recorded = Recorded(request)
        return self._recorded

    def judge(self, opguard: Opguard) -> None:
        """Compare what the test recorded, and fail by the verdict."""
        with explained(self._item):
            opguard.require_complete()
            request = self._recorded.request
            outcome = self._recorded.finish({"status": "ok"})
            if not self.is_checked:
                return
            self._runs.recorded = _run(request.output, outcome, request.commit)
            document = self._guard.check(self._project, self._base, self._wanted)
            _without_runner(document)
            document = {"nodeid": self._item.nodeid, **document, "recipe": None, "target": self._item.nodeid}
        conclude(self._item, document, self._asked, self._advice(document))

    def _advice(self, document: dict[str, Any]) -> str:
        from pytest_opguard.node import target_of

        argv = self._base.job.argv[1:]
        job = replace(self._base.job, target=target_of(argv[-1]), argv=argv)
        return bisect_line(self._project, job, document, "observe")


def _without_runner(document: dict[str, Any]) -> None:
    """Take the frames of pytest and xdist, which are around every test, out of the stack of a divergence."""
    first = document.get("first_divergence")
    if first:
        first["stack"] = [frame for frame in first["stack"] if frame["file"].partition("/")[0] not in _RUNNERS]


def _run(folder: str, outcome: dict[str, Any], commit: str | None) -> Run:
    from opguard_ci.worker.commits import Run
    from opguard_ci.worker.request import RunResult

    result: RunResult = RunResult("ok", outcome, folder, 0.0)
    return Run(Path(folder), result, commit)


def provide(item: pytest.Function) -> Iterator[Opguard]:
    """The fixture's object for a test of the session, and its end if the test did not come to one."""
    guarded = Guarded(item)
    recorded = guarded.prepare()
    opguard = item.stash[FIXTURE] = Opguard(recorded)
    item.stash[GUARDED] = guarded
    try:
        yield opguard
    finally:
        recorded.close()


GUARDED: Final = pytest.StashKey[Guarded]()
"""Who judges an item that uses the fixture, in the session that checks it."""


def judge(item: pytest.Item) -> None:
    """Judge a test whose body has passed, if it uses the fixture."""
    if GUARDED in item.stash:
        item.stash[GUARDED].judge(item.stash[FIXTURE])
