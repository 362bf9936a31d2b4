"""Watches one run, and ends every process of it whoever dies first.

The warden is the parent of the run's child and the subreaper of all its descendants, so that nothing that the run
starts can leave its tree, neither by a double fork nor by a new session. It ends the tree when the child has ended, at
the timeout, and when the client or the server goes. If the warden itself is killed, the child gets SIGKILL from the
kernel and the server, a subreaper too, ends the rest. Not covered: server and warden killed in the same moment leave
grandchildren in sessions of their own; and what other services start on a run's behalf (a container, an ``at`` job).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NoReturn

from opguard_ci.worker import child, processes, wire
from opguard_ci.worker.ending import Ending
from opguard_ci.worker.request import RunRequest

_REQUEST_TIMEOUT: Final = 10.0
"""Seconds in which a client must have sent the whole of its request."""
_FINISH: Final = 5.0
"""Seconds that a child has for its exit functions and threads after it has sent its outcome."""
_DUMP: Final = 1.0
"""Seconds that a child has to write its Python stack after its timeout."""
_LAUNCHER: Final = 15.0
"""Seconds that the launcher of several ranks has after their timeout to end them and account for them."""
_STACK_LIMIT: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Post:
    """What a warden is given: the client's connection, and pidfds of the server and the client."""

    connection: socket.socket
    server: int
    client: int
    entry: str
    keep: Collection[int]


def main(post: Post) -> NoReturn:
    """Serves one run in this freshly forked process and ends it."""
    code = 1
    try:
        os.setsid()
        processes.set_name("opguard-warden")
        processes.become_subreaper()
        child.reset_signals()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.close_others({0, 1, 2, post.connection.fileno(), post.server, post.client, *post.keep})
        _serve(post)
        code = 0
    except (EOFError, BrokenPipeError, ConnectionResetError, TimeoutError):
        code = 0  # the client has gone; there is nobody to tell
    except BaseException:
        traceback.print_exc()
    finally:
        processes.end_descendants()
        sys.stderr.flush()
        os._exit(code)


def _serve(post: Post) -> None:
    post.connection.settimeout(_REQUEST_TIMEOUT)
    message, (stdout, stderr, breadcrumb) = wire.receive_run(post.connection, 3)
    post.connection.settimeout(None)
    request = RunRequest.from_json(message["request"])
    outcome_read, outcome_write = os.pipe()
    stack = os.memfd_create("opguard-stack")
    begin = time.monotonic()
    warden = os.getpid()
    pid = os.fork()
    if pid == 0:
        job = child.Job(
            request=request,
            entry=post.entry,
            environment=message["environment"],
            umask=message["umask"],
            stdout=stdout,
            stderr=stderr,
            breadcrumb=breadcrumb,
            outcome=outcome_write,
            stack=stack,
            keep=post.keep,
        )
        child.main(job, warden)
    for descriptor in (stdout, stderr, breadcrumb, outcome_write):
        os.close(descriptor)
    wire.send(post.connection, {"kind": "started", "warden": warden, "child": pid})
    # The launcher of several ranks keeps the timeout itself, to say which rank did what.
    grace = _LAUNCHER if request.ranks > 1 else 0.0
    watch = _Watch(post, pid, outcome_read, begin + request.timeout + grace)
    how = watch.until_over()
    seconds = time.monotonic() - begin
    if how == "timeout":
        _ask_for_stack(pid, watch.process)
    left, stuck, status = _end_all(pid, patient=how == "exit")
    watch.drain()
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    text = os.pread(stack, _STACK_LIMIT, 0).decode(errors="replace")
    ending = Ending(
        "signal" if how == "exit" and code < 0 else how,
        abs(code),
        watch.message,
        text,
        tuple(left),
        tuple(stuck),
        seconds,
    )
    wire.send(post.connection, {"kind": "ended", **asdict(ending)})


def _end_all(pid: int, *, patient: bool) -> tuple[list[str], list[str], int | None]:
    """Ends the child, if it has not ended, and then all that it left; its wait status is the third result."""
    status = None
    if not patient:
        processes.kill(pid)
    deadline = time.monotonic() + _FINISH
    while status is None and time.monotonic() < deadline:
        done, value = os.waitpid(pid, os.WNOHANG)
        if done:
            status = value
        else:
            time.sleep(0.001)
    left, stuck = processes.end_descendants(patient=patient)
    return left, stuck, status


def _ask_for_stack(pid: int, process: int) -> None:
    """SIGABRT makes faulthandler write the stacks of all threads, also out of a loop in C; no core file is wanted."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except OSError:
        return  # it has ended in between
    processes.kill(pid, signal.SIGABRT)
    select.select([process], [], [], _DUMP)


class _Watch:
    """Waits for whatever ends a run, and collects the child's message meanwhile."""

    __slots__ = ("_deadline", "_frames", "_outcome", "_poll", "_post", "message", "process")

    def __init__(self, post: Post, pid: int, outcome: int, deadline: float) -> None:
        self.process = os.pidfd_open(pid)
        self.message: dict[str, Any] | None = None
        self._post, self._deadline = post, deadline
        self._outcome: int | None = outcome
        self._frames = wire.Frames()
        self._poll = select.poll()
        os.set_blocking(outcome, False)
        self._poll.register(post.connection, select.POLLIN | select.POLLRDHUP)
        for descriptor in (post.server, post.client, self.process, outcome):
            self._poll.register(descriptor, select.POLLIN)

    def until_over(self) -> Literal["exit", "timeout", "server-lost"]:
        """How the run is over; raises EOFError if it is because the client has gone."""
        while True:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                return "timeout"
            ready = {descriptor for descriptor, _ in self._poll.poll(min(remaining, 3600) * 1000)}
            if self._outcome in ready:
                self._read()
            if self.process in ready:
                return "exit"
            if self._post.client in ready or self._post.connection.fileno() in ready:
                raise EOFError
            if self._post.server in ready:
                return "server-lost"

    def drain(self) -> None:
        """Takes what the child had written before it ended."""
        self._read()

    def _read(self) -> None:
        while self._outcome is not None:
            try:
                data = os.read(self._outcome, 1 << 20)
            except BlockingIOError:
                return
            if not data:
                self._poll.unregister(self._outcome)
                self._outcome = None
                return
            for message in self._frames.feed(data):
                self.message = message
                self._deadline = min(self._deadline, time.monotonic() + _FINISH)
