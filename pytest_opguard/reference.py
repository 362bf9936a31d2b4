"""Runs one ordinary test by pytest in the child of a fork server; its fixture ``opguard`` writes the trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from opguard_ci.capture.recording import Recording, failure
from opguard_ci.capture.run import ENVIRONMENT
from opguard_ci.capture.run import execute as execute_target
from opguard_ci.errors import OpguardError, UntestableError
from opguard_ci.recipe import parse_target
from opguard_ci.worker.proof import Proof, code_of
from opguard_ci.worker.request import RunRequest
from pytest_opguard import node
from pytest_opguard.fixture import Opguard
from pytest_opguard.recorded import Recorded

_MAX_MESSAGE: Final = 300


def execute(request: RunRequest) -> dict[str, Any]:
    """Run the test that the request's arguments name; the outcome, as ``capture.run.execute`` gives it."""
    if request.target == ENVIRONMENT:
        return execute_target(request)
    target = parse_target(request.target, request.cwd)
    os.chdir(request.cwd)
    sys.path[:] = list(dict.fromkeys([*target.search_path(request.cwd, request.root), *sys.path]))
    test = ChildTest(request)
    try:
        with code_of(request) as proof:
            printed = node.main(request.argv[1:], test)
            return test.end(proof, printed)
    except OpguardError as error:
        if error.exit_code == 2:
            raise
        return test.broken(failure(error.slug, error.message, getattr(error, "traceback", "")))


class ChildTest(node.Child):
    """The pytest plugin of the child: it lends the fixture its recorder, and notes how the test went."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._recorded: Recorded | None = None
        self._opguard: Opguard | None = None
        self._problems: list[str] = []
        self._skipped: list[str] = []

    def provide(self) -> Iterator[Opguard]:
        """The fixture's object in the child."""
        self._recorded = Recorded(self._request)
        self._opguard = Opguard(self._recorded)
        try:
            yield self._opguard
        finally:
            self._recorded.stop()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what cannot be collected."""
        if report.failed:
            self._problems.append(str(report.longrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how the test ends."""
        if report.failed:
            self._problems.append(str(report.longrepr))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._skipped.append(str(reason))

    def end(self, proof: Proof, printed: str) -> dict[str, Any]:
        """Close the trace of a test that passed. Raises ``UntestableError`` for every other."""
        what = self._request.argv[-1]
        if self._problems:
            text = "\n".join(self._problems)
            raise UntestableError("target-raised", f"{what} fails{node.last_error(text)}", text)
        if self._skipped:
            raise UntestableError("test-skipped", f"{what} is skipped: {self._skipped[0][:_MAX_MESSAGE]}")
        if self._recorded is None or self._opguard is None:
            raise UntestableError("not-collected", f"pytest runs no test {what} that uses opguard here.", printed)
        if not self._opguard.is_complete:
            raise UntestableError("steps-not-finished", f"{what} does not go through all of its steps here.")
        proof.check()
        return self._recorded.finish({"status": "ok"}, proof.notes())

    def broken(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Close the trace of a run that did not come to its end, as far as it came."""
        if self._recorded is not None:
            return self._recorded.finish(outcome)
        recording = Recording(self._request, self._request.root or self._request.cwd)
        with recording.writing():
            return recording.finish(outcome)
