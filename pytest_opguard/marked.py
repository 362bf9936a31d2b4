"""An ordinary test as a target of its own, for ``opguard bisect``: pytest runs it inside of a captured run.

Its steps are marked, and what it records is returned, so that both belong to the contract of the run around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from opguard_ci.errors import UntestableError
from opguard_ci.recipe import mark_step
from pytest_opguard import node
from pytest_opguard.fixture import Opguard


class Marked:
    """Takes the place of a recorder: says where steps begin, and keeps copies of the values."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.stopped: BaseException | None = None
        self._step = 0

    def begin(self) -> None:
        """The first step begins."""
        self._mark()

    def record(self, values: dict[str, Any]) -> None:
        """Keep the values as they are now."""
        import torch

        from opguard_ci.capture.contract import flatten_step

        for entry in flatten_step(values):
            held = entry.held
            kept = held.detach().clone() if isinstance(held, torch.Tensor) else held
            self.values[f"{self._step}.{entry.name}"] = kept

    def end_step(self) -> None:
        """The current step is over; what comes after the last one counts as one more."""
        self._step += 1
        self._mark()

    def _mark(self) -> None:
        from opguard_ci.capture.steps import EnoughSteps

        try:
            mark_step(self._step)
        except EnoughSteps as enough:  # to pytest it would be a failure of the test
            self.stopped = enough
            pytest.exit("enough steps")

    def stop(self) -> None:
        """Nothing has to be let go."""


class _Test(node.Child):
    """The pytest plugin that lends the fixture a ``Marked``, and notes what fails."""

    def __init__(self) -> None:
        self.marked = Marked()
        self.problems: list[str] = []

    def provide(self) -> Iterator[Opguard]:
        """The fixture's object."""
        yield Opguard(self.marked)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails, or is skipped, which computes as little."""
        if not report.passed:
            self.problems.append(str(report.longrepr))


def test_function(arguments: Sequence[str]) -> Callable[[], dict[str, Any]]:
    """A function that runs the test of a target's arguments and returns all that it recorded."""

    def run() -> dict[str, Any]:
        test = _Test()
        node.main(arguments, test)
        if test.marked.stopped is not None:
            raise test.marked.stopped
        if test.problems:
            text = "\n".join(test.problems)
            raise UntestableError("target-raised", f"{arguments[-1]} does not pass{node.last_error(text)}", text)
        return test.marked.values

    return run
