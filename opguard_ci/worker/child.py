"""What the process of one run does: becomes what a fresh interpreter would be, runs the target, reports."""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from opguard_ci.determinism import profile
from opguard_ci.errors import OpguardError
from opguard_ci.worker import processes, wire
from opguard_ci.worker.request import RunRequest


@dataclass(frozen=True, slots=True)
class Job:
    """A run and the descriptors that it may use; ``keep`` are those that imported libraries hold."""

    request: RunRequest
    entry: str
    environment: dict[str, str]
    umask: int
    stdout: int
    stderr: int
    breadcrumb: int
    outcome: int
    stack: int
    keep: Collection[int]


def main(job: Job, warden: int) -> NoReturn:
    """Runs the job in this freshly forked process and ends it."""
    try:
        mine = os.getpid()
        _settle(job, warden)
        message = _run(job)
        if os.getpid() == mine:  # else the target forked and this is its child, which has nothing to report
            _write(job.outcome, wire.pack(message))
            _finish()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _settle(job: Job, warden: int) -> None:
    processes.die_with_parent(warden)
    os.setsid()
    processes.set_name("python")
    reset_signals()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, descriptor in ((null, 0), (job.stdout, 1), (job.stderr, 2)):
        os.dup2(source, descriptor)
    close_others({0, 1, 2, job.breadcrumb, job.outcome, job.stack, *job.keep})
    os.environ.clear()
    os.environ.update(job.environment)
    os.umask(job.umask)
    faulthandler.enable(file=job.stack)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=os.isatty(1) or unbuffered, write_through=unbuffered)  # type: ignore[union-attr]


def reset_signals() -> None:
    """Gives every signal the disposition that a fresh interpreter has, and unblocks all."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def close_others(keep: Collection[int]) -> None:
    """Closes every descriptor of this process but these."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            try:
                os.close(int(entry.name))
            except OSError:
                continue  # the one that listed the folder, closed by now


def load_entry(entry: str) -> Callable[[RunRequest], dict[str, Any]]:
    """The function behind ``module:function``."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _run(job: Job) -> dict[str, Any]:
    """The entry's outcome as ``{"outcome": …}``, or ``{"error": …}`` for what the caller has to raise."""
    try:
        try:
            os.chdir(job.request.cwd)
        except OSError as error:
            text = f"The working directory {job.request.cwd} cannot be entered: {error.strerror}."
            return {"error": {"class": "UsageError", "slug": "cwd-missing", "message": text}}
        notes = profile.apply(job.request.profile or "observe")
        request = job.request
        if request.breadcrumb is None:
            request = replace(request, breadcrumb=f"/proc/self/fd/{job.breadcrumb}")
        outcome = load_entry(job.entry)(request)
        outcome["notes"] = [*outcome.get("notes", ()), *notes]
        wire.pack(outcome)  # an outcome that is no JSON is our defect, and must show as one
        return {"outcome": outcome}
    except OpguardError as error:
        return {"error": {"class": type(error).__name__, "slug": error.slug, "message": error.message}}
    except KeyboardInterrupt:
        text = f"{job.request.target} was interrupted."
        outcome = {"status": "untestable", "slug": "interrupted", "message": text, "traceback": "", "notes": []}
        return {"outcome": outcome}
    except BaseException as error:
        text = f"opguard_ci failed while it ran {job.request.target}: {type(error).__name__}: {error}"
        return {"error": {"class": "OpguardError", "slug": "internal", "message": f"{text}\n{traceback.format_exc()}"}}


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _finish() -> None:
    """Ends like an interpreter: waits for threads, runs exit functions, flushes. The outcome is already sent."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # the reader has gone, or the target closed it
