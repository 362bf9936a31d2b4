"""The capture of an ordinary test's steps, the same in pytest's own process and in the child of its reference."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from opguard_ci.capture.contract import flatten_step
from opguard_ci.capture.hooks import listening
from opguard_ci.capture.recording import Recording
from opguard_ci.capture.steps import Steps
from opguard_ci.worker.request import RunRequest


class Recorded:
    """A trace that grows from the moment this is made; what runs before the first step is its setup."""

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self._recording = Recording(request, request.root or request.cwd)
        self._steps = Steps(self._recording.session, None)
        self._listening = ExitStack()
        hooks = listening(self._recording.session, self._steps, operators=request.level != "contract")
        with ExitStack() as stack:
            stack.enter_context(self._recording.writing())
            self._listening.enter_context(hooks)
            self._writing = stack.pop_all()
        self._steps.use_yields()
        self._recording.session.relabel_step(-1)

    def begin(self) -> None:
        """The first step begins."""
        self._recording.session.end_step(0)

    def record(self, values: dict[str, Any]) -> None:
        """Add named values to the contract of the current step, as they are now."""
        self._recording.session.contract.record(flatten_step(values))

    def end_step(self) -> None:
        """The current step is over."""
        self._steps.yielded({})

    def stop(self) -> None:
        """Record no more operators."""
        self._listening.close()

    def close(self) -> None:
        """Leave the trace as it is; nothing happens after `finish`."""
        self.stop()
        self._writing.close()

    def finish(self, outcome: dict[str, Any], notes: list[str] | None = None) -> dict[str, Any]:
        """Close the trace with how the test ended; the whole outcome."""
        self.stop()
        for note in notes or ():
            self._recording.note(note)
        with self._writing:
            return self._recording.finish(outcome)
