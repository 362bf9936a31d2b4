"""What callers use: starts or finds a fork server, has it run a target, and accounts for the end."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from opguard_ci import errors
from opguard_ci.determinism import profile as profiles
from opguard_ci.errors import OpguardError, UsageError
from opguard_ci.garbage import no_collections
from opguard_ci.worker import processes, wire
from opguard_ci.worker.child import load_entry
from opguard_ci.worker.ending import Ending, outcome_of
from opguard_ci.worker.identity import DEFAULT_ENTRY
from opguard_ci.worker.request import Profile, RunRequest, RunResult
from opguard_ci.worker.servers import Server

_BREADCRUMB_BYTES: Final = 256
_LAST_WORDS: Final = 15.0
"""Seconds that a warden gets to end everything after the client gave up the run."""


def run(
    request: RunRequest, *, server: Server | None = None, stdout: int | None = None, stderr: int | None = None
) -> RunResult:
    """Runs a target in a child of a fork server and waits for its end, and for the end of all its processes.

    ``server`` None takes the kept server of the request's profile. ``stdout`` and ``stderr`` are descriptors for the
    target's output, by default this process's own. A run that crashes, is killed or takes too long is a result with
    status ``untestable``. Ctrl-C ends the run and is raised again.

    Raises UsageError for what is wrong with the request, OpguardError if a server cannot be started or fails.
    """
    request = with_profile(request)
    profile = request.profile
    assert profile is not None
    if server is None:
        server = Server.connect(profile)
    assert server.profile == profile, (server.profile, profile)
    breadcrumb = os.memfd_create("opguard-breadcrumb")
    try:
        os.ftruncate(breadcrumb, _BREADCRUMB_BYTES)
        with _descriptors((stdout, stderr)) as output:
            ending = _attempt(server, request, [*output, breadcrumb])
            if ending is None:  # it ended on its own between the search and the call
                server.renew()
                ending = _attempt(server, request, [*output, breadcrumb])
        if ending is None:
            raise OpguardError("server-gone", f"The fork server {server.name} ended before it took the run; try again.")
        outcome = _outcome(ending, request, _read_breadcrumb(request, breadcrumb))
    finally:
        os.close(breadcrumb)
    if request.ranks > 1:  # in case that the launcher ended before it could
        from opguard_ci.trace.ranks import merge_parts

        merge_parts(Path(request.output), outcome)
    if outcome["status"] == "ok" or ending.message is not None:
        outcome["notes"] += profiles.overridden(profile, os.environ)
    return RunResult(
        status=_status(outcome),
        outcome=outcome,
        trace=request.output,
        seconds=ending.seconds,
        server=server.identity,
        hash_seed=server.hash_seed,
        left_behind=ending.left,
    )


def run_in_process(request: RunRequest, *, entry: str = DEFAULT_ENTRY) -> RunResult:
    """Runs a target in this process, for debuggers. What cannot be pinned here any more is said in the notes.

    There is no timeout, and a crash takes this process with it. The profile's switches stay on afterwards.
    """
    request = with_profile(request)
    assert request.profile is not None
    if request.ranks > 1:
        raise UsageError(
            "ranks-in-process", f"{request.target} runs in {request.ranks} ranks, which need processes of their own."
        )
    with no_collections():  # both may import torch
        notes = profiles.apply(request.profile)
        execute = load_entry(entry)
    begin = time.monotonic()
    outcome = execute(request)
    outcome["notes"] = [*outcome.get("notes", ()), *notes]
    seed = os.environ.get("PYTHONHASHSEED", "random") if not sys.flags.ignore_environment else "random"
    return RunResult(
        status=_status(outcome),
        outcome=outcome,
        trace=request.output,
        seconds=time.monotonic() - begin,
        hash_seed="random" if any(note.startswith("PYTHONHASHSEED") for note in notes) else seed,
    )


def with_profile(request: RunRequest) -> RunRequest:
    """The request with its profile filled in: the recipe's own, else by the kind of target."""
    if request.profile is not None:
        return request
    from opguard_ci.recipe import peek_profile

    return replace(request, profile=cast(Profile, peek_profile(request.target, request.cwd, request.root)))


def _status(outcome: dict[str, Any]) -> Literal["ok", "untestable"]:
    return "ok" if outcome["status"] == "ok" else "untestable"


def _read_breadcrumb(request: RunRequest, descriptor: int) -> bytes:
    if request.breadcrumb is None:
        return os.pread(descriptor, _BREADCRUMB_BYTES, 0)
    return Path(request.breadcrumb).read_bytes()


def _attempt(server: Server, request: RunRequest, descriptors: list[int]) -> Ending | None:
    """One run; None if the server had gone before it began."""
    connection = wire.connect(server.path)
    if connection is None:
        return None
    with connection:
        message = {
            "request": request.to_json(),
            "environment": {**os.environ, **profiles.environment_variables(server.profile)},
            "umask": _umask(),
        }
        try:
            wire.send_run(connection, message, descriptors)
            started = wire.receive(connection)
        except ConnectionError:
            return None
        except BaseException:
            _abandon(connection)
            raise
        if started is None:
            return None
        if started["kind"] == "refused":
            raise OpguardError("server-threads", f"A run cannot be forked: {started['message']}; use --in-process.")
        try:
            ended = wire.receive(connection)
        except ConnectionError:
            ended = None
        except BaseException:
            _abandon(connection)
            raise
    if ended is None:
        return _without_warden(started["child"])
    fields = {name: value for name, value in ended.items() if name != "kind"}
    return Ending(**{**fields, "left": tuple(fields["left"]), "stuck": tuple(fields["stuck"])})


def _abandon(connection: socket.socket) -> None:
    """Gives the run up and waits until its warden has ended it."""
    with contextlib.suppress(OSError, OpguardError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_LAST_WORDS)
        while wire.receive(connection) is not None:
            pass


def _without_warden(child: int) -> Ending:
    """Makes sure that a run whose warden was killed is over."""
    deadline = time.monotonic() + _LAST_WORDS
    while (left := processes.members_of_session(child)) and time.monotonic() < deadline:
        for pid in left:
            processes.kill(pid)
        time.sleep(0.005)
    return Ending("warden-lost")


def _outcome(ending: Ending, request: RunRequest, breadcrumb: bytes) -> dict[str, Any]:
    message = ending.message
    if message is not None and "error" in message:
        error = message["error"]
        raise getattr(errors, error["class"], OpguardError)(error["slug"], error["message"])
    return outcome_of(ending if message is None else replace(ending, message=message["outcome"]), request, breadcrumb)


@contextlib.contextmanager
def _descriptors(output: tuple[int | None, int | None]) -> Iterator[list[int]]:
    """Descriptors for the run's stdout and stderr; the null device where this process has none."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        chosen = []
        for given, own, stream in zip(output, (1, 2), (sys.stdout, sys.stderr), strict=True):
            if given is None and stream is not None:
                with contextlib.suppress(ValueError, OSError):
                    stream.flush()  # what was printed before the run must stand before its output
            descriptor = own if given is None else given
            chosen.append(descriptor if _is_open(descriptor) else null)
        yield chosen
    finally:
        os.close(null)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _umask() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022
