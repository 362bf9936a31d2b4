"""Captures a block of code in the process that runs it: what ``opguard_ci.capture(path)`` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from ..determinism import profile as profiles
from ..recipe import marking
from ..worker.request import Level, Profile, RunRequest
from .hooks import listening
from .recording import Recording, failure
from .steps import EnoughSteps, Steps


@contextmanager
def captured(folder: Path, level: str, profile: str) -> Iterator[None]:
    """Capture the block into ``folder``. An error of the block passes through; the trace up to it is kept."""
    request = RunRequest(
        target=sys.argv[0] or "-",
        cwd=os.getcwd(),  # noqa: PTH109 - the text, not a path object
        output=str(folder),
        argv=tuple(sys.argv[1:]),
        level=cast(Level, level),
        profile=cast(Profile, profile),
    )
    recording = Recording(request)
    for note in profiles.apply(cast(Profile, profile)):
        recording.note(note)
    steps = Steps(recording.session, None)
    with recording.writing():
        try:
            with listening(recording.session, steps, operators=level != "contract"), marking(steps.mark):
                yield
                steps.returned(None)
        except EnoughSteps:
            recording.finish({"status": "ok"})
            assert recording.broken is not None
            raise recording.broken from None
        except BaseException as error:
            recording.finish(failure("target-raised", f"The block raised {type(error).__name__}: {error}"))
            raise
        recording.finish({"status": "ok"})
