"""The fork server: imports torch once, then forks a warden and a child for every run that a client asks for.

It only imports. An operator, a parallel region or a CUDA query here would break threads or CUDA in every child, so the
number of its threads is checked before each fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from opguard_ci.garbage import no_collections
from opguard_ci.worker import processes, warden, wire

FORK_SAFE_THREADS: Final = frozenset({"jemalloc_bg_thd"})
"""Threads that a fork survives: jemalloc (in pyarrow) has fork handlers for its own."""
_USED_BY_EVERY_RUN: Final = (
    "opguard_ci.capture.run",
    "opguard_ci.capture.collectives",
    "torch._inductor.output_code",
    "numpy.ma",  # pyarrow asks for it when it makes its first array
)
"""Modules that are imported when a run is recorded, in each child if not before."""
_KIND_TIMEOUT: Final = 10.0
"""Seconds in which a client that has connected must say what it wants."""


@dataclass(frozen=True, slots=True)
class Config:
    """How a server was started: its place, whom it fits, when it ends.

    ``idle`` are the seconds without a run after which it ends; 0 if it belongs to the process ``owner`` and ends with
    it. ``ready`` and ``lifeline`` are pipes from the client that started it.
    """

    folder: str
    name: str
    profile: str
    hash_seed: str
    entry: str
    idle: float
    owner: int
    ready: int
    lifeline: int

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return Path(self.folder) / f"{self.name}.sock"

    @property
    def log(self) -> Path:
        """What its stderr goes to."""
        return Path(self.folder) / f"{self.name}.log"


class _Stop(BaseException):
    """Raised by SIGTERM."""


def main(arguments: str) -> None:
    """Becomes a server in a process of its own; the calling process ends at once."""
    config = Config(**json.loads(arguments))
    if os.fork():
        os._exit(0)
    os.setsid()
    for descriptor in (config.ready, config.lifeline):
        os.set_inheritable(descriptor, False)
    processes.set_name("opguard-server")
    processes.become_subreaper()
    signal.signal(signal.SIGTERM, _stop)
    try:
        preload(config.entry)
        os.chdir("/")  # so that it keeps no folder of the user busy
        service = Service(config)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    with contextlib.suppress(_Stop):
        service.serve()
    service.close()
    os._exit(0)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stop


@no_collections()
def preload(entry: str) -> None:
    """Imports what every run needs and leaves a process that can be forked.

    An entry outside this package is imported by each child instead, so that its current source is what runs; the
    plugin's records as well.
    """
    import torch
    import torch._dynamo

    from opguard_ci.capture import native
    from opguard_ci.capture.uncompiled import keep_dynamo_out
    from opguard_ci.determinism import environment, machine, portable  # noqa: F401

    assert torch.__version__
    if entry.startswith("opguard_ci."):
        importlib.import_module(entry.partition(":")[0])
    if entry.startswith(("opguard_ci.", "pytest_opguard.")):
        for name in _USED_BY_EVERY_RUN:
            importlib.import_module(name)
        native.load()
        keep_dynamo_out()
    machine.gpus()  # asked in a process of its own, and kept for the children
    # The finalizers of torch's operator libraries only tidy memory, and would cost each child 30 to 120 ms at its exit.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    # OpenBLAS ends its threads when the process forks and starts them again when they are needed.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    check_threads()
    gc.collect()
    gc.freeze()


def check_threads() -> None:
    """Raises RuntimeError if this process has threads that a fork would lose."""
    names = [name for name in processes.thread_names() if name not in FORK_SAFE_THREADS]
    if names:
        raise RuntimeError(
            f"the fork server has {len(names)} threads beside its own and cannot fork: {', '.join(names)}"
        )


def open_descriptors() -> set[int]:
    """The descriptors of this process."""
    found = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    return {descriptor for descriptor in found if _is_open(descriptor)}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False  # the one that listed the folder
    return True


class Service:
    """The loop of a server: connections, running wardens, and the reasons to end."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._keep = frozenset(open_descriptors() - {0, 1, 2, config.ready, config.lifeline})
        self._listener = wire.listen(config.socket)
        self._inode = config.socket.stat().st_ino
        self._self = os.pidfd_open(os.getpid())
        self._owner = processes.pidfd(config.owner) if not config.idle else None
        self._pending: dict[int, tuple[socket.socket, float]] = {}
        self._wardens: dict[int, int] = {}  # pidfd -> pid
        self._started = self._used = time.monotonic()
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        if not config.idle:
            for descriptor in (config.lifeline, self._owner):
                if descriptor is not None:
                    self._poll.register(descriptor, select.POLLIN)
        os.write(config.ready, json.dumps(self.describe()).encode() + b"\n")
        os.close(config.ready)

    def describe(self) -> dict[str, Any]:
        """What ``doctor`` shows and what clients prove their runs with."""
        now = time.monotonic()
        config = self._config
        return {
            "pid": os.getpid(),
            "identity": processes.identity(os.getpid()),
            "name": config.name,
            "profile": config.profile,
            "hash_seed": config.hash_seed,
            "entry": config.entry,
            "python": sys.executable,
            "idle": config.idle,
            "age": round(now - self._started, 1),
            "unused_for": round(now - self._used, 1),
            "runs": len(self._wardens),
        }

    def serve(self) -> None:
        """Serves until there is a reason to end."""
        while not self._is_over():
            for descriptor, _ in self._poll.poll(1000):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._pending:
                    self._dispatch(descriptor)
                elif descriptor in self._wardens:
                    self._bury(descriptor)
                else:
                    return  # the owner has gone

    def close(self) -> None:
        """Takes the socket away, if it is still this server's; runs end with the process."""
        with contextlib.suppress(FileNotFoundError):
            if self._config.socket.stat().st_ino == self._inode:
                self._config.socket.unlink()
                self._config.log.unlink()

    def _is_over(self) -> bool:
        now = time.monotonic()
        for descriptor, (connection, since) in list(self._pending.items()):
            if now - since > _KIND_TIMEOUT:
                self._forget(descriptor, connection)
        if self._wardens or self._pending:
            return False
        try:
            replaced = self._config.socket.stat().st_ino != self._inode
        except OSError:
            return True
        return replaced or bool(self._config.idle and now - self._used > self._config.idle)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if wire.peer(connection)[1] != os.getuid():
            connection.close()
            return
        self._pending[connection.fileno()] = connection, time.monotonic()
        self._poll.register(connection, select.POLLIN)

    def _forget(self, descriptor: int, connection: socket.socket) -> None:
        self._poll.unregister(descriptor)
        del self._pending[descriptor]
        connection.close()

    def _dispatch(self, descriptor: int) -> None:
        connection = self._pending[descriptor][0]
        try:
            kind = connection.recv(1)
            if kind == wire.RUN:
                self._start_run(connection)
            elif kind == wire.INFO:
                wire.send(connection, self.describe())
            elif kind == wire.STOP:
                raise _Stop
        except (ConnectionError, BrokenPipeError):
            pass  # the client has gone, and with it the wish
        finally:
            self._forget(descriptor, connection)

    def _start_run(self, connection: socket.socket) -> None:
        client = processes.pidfd(wire.peer(connection)[0])
        if client is None:
            return
        try:
            check_threads()
        except RuntimeError as error:
            os.close(client)
            wire.send(connection, {"kind": "refused", "message": str(error)})
            return
        self._used = time.monotonic()
        pid = os.fork()
        if pid == 0:
            warden.main(warden.Post(connection, self._self, client, self._config.entry, self._keep))
        os.close(client)
        process = os.pidfd_open(pid)
        self._wardens[process] = pid
        self._poll.register(process, select.POLLIN)

    def _bury(self, process: int) -> None:
        self._poll.unregister(process)
        pid = self._wardens.pop(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        self._used = time.monotonic()
        if status:
            processes.end_orphans(set(self._wardens.values()))
