"""Starts, finds, lists and stops fork servers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Final

from opguard_ci.determinism.profile import environment_variables
from opguard_ci.errors import OpguardError, UsageError
from opguard_ci.worker import processes, wire
from opguard_ci.worker.folders import private_folder
from opguard_ci.worker.identity import (
    DEFAULT_ENTRY,
    PACKAGE,
    ServerSpec,
    chosen_hash_seed,
    interpreter_options,
    server_key,
)
from opguard_ci.worker.server import Config

_START_TIMEOUT: Final = 300.0
_ANSWER_TIMEOUT: Final = 10.0
IDLE: Final = "OPGUARD_SERVER_IDLE"
_DEFAULT_IDLE: Final = 300.0

# The folder of this package is on the path only while the package is found, so that nothing beside it can shadow a
# module of the standard library; behind everything else it may stay, for a checkout that is not installed.
_BOOTSTRAP: Final = """
import sys
root, arguments = sys.argv[1:]
sys.argv[:] = [""]
sys.path.insert(0, root)
from opguard_ci.worker.server import main
sys.path[:] = [entry for entry in sys.path if entry and entry != root] + [root]
main(arguments)
"""


def idle_seconds() -> float:
    """``OPGUARD_SERVER_IDLE``: how long a server outlives its last run; 0: not beyond the process that started it."""
    text = os.environ.get(IDLE, "")
    if not text:
        return _DEFAULT_IDLE
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError("server-idle", f"OPGUARD_SERVER_IDLE={text} is not a number of seconds; set it to 0 or more.")
    return value


class Server:
    """A fork server that listens. ``identity`` differs between any two servers, ``hash_seed`` is the one in force."""

    _owned: ClassVar[dict[str, Server]] = {}

    def __init__(
        self, spec: ServerSpec, path: Path, description: Mapping[str, Any], lifeline: int | None = None
    ) -> None:
        self._spec = spec
        self._lifeline = lifeline
        self.path = path
        self.description = dict(description)

    @property
    def name(self) -> str:
        """The name of its socket."""
        return self.path.stem

    @property
    def profile(self) -> str:
        """The profile whose variables it started with."""
        return self._spec.profile

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self.description["pid"])

    @property
    def identity(self) -> str:
        """Process id and start time."""
        return str(self.description["identity"])

    @property
    def hash_seed(self) -> str:
        """Its PYTHONHASHSEED."""
        return str(self.description["hash_seed"])

    @classmethod
    def connect(
        cls, profile: str, *, instance: int = 0, hash_seed: int | None = None, entry: str = DEFAULT_ENTRY
    ) -> Server:
        """The kept server that fits this process, started if there is none.

        ``instance`` 1 is a second server, for runs that must not share hash seed and heap with those of the first. With
        OPGUARD_SERVER_IDLE=0 the server belongs to this process and ends with it.
        """
        _require_linux()
        spec = ServerSpec(profile, instance, hash_seed, entry)
        name = server_key(spec, os.environ)
        if idle_seconds() == 0:
            owned = cls._owned.get(name)
            if owned is None or _ask(owned.path) is None:
                owned = cls._owned[name] = _start(spec, f"own-{os.getpid()}-{secrets.token_hex(4)}", kept=False)
            return owned
        path = private_folder("servers") / f"{name}.sock"
        description = _ask(path)
        if description is None:
            with _start_lock(name):
                description = _ask(path)
                if description is None:
                    return _start(spec, name, kept=True)
        return cls(spec, path, description)

    @classmethod
    def start(cls, profile: str, *, hash_seed: int | None = None, entry: str = DEFAULT_ENTRY) -> Server:
        """A new server for this process alone; ``close`` ends it, and so does the end of this process."""
        _require_linux()
        spec = ServerSpec(profile, 0, hash_seed, entry)
        return _start(spec, f"own-{os.getpid()}-{secrets.token_hex(4)}", kept=False)

    def renew(self) -> None:
        """Finds or starts a server again after this one has ended on its own."""
        spec = self._spec
        fresh = Server.connect(spec.profile, instance=spec.instance, hash_seed=spec.hash_seed, entry=spec.entry)
        self.path, self.description, self._lifeline = fresh.path, fresh.description, fresh._lifeline

    def close(self) -> None:
        """Ends a server of ``start``; a kept one is left to its idle time."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
            _wait_for_end(self.pid)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def list_servers() -> list[dict[str, Any]]:
    """The description of every server in the cache folder: pid, profile, hash seed, runs, age and idle time."""
    found = []
    for path in sorted(private_folder("servers").glob("*.sock")):
        description = _ask(path)
        if description is None:
            path.unlink(missing_ok=True)  # left by a server that was killed
        else:
            found.append(description)
    return found


def stop_servers() -> int:
    """Ends every server in the cache folder, and the runs of it; returns how many there were."""
    pids = []
    for path in sorted(private_folder("servers").glob("*.sock")):
        description = _ask(path)
        connection = wire.connect(path) if description else None
        if description is not None and connection is not None:
            with connection, contextlib.suppress(ConnectionError):
                connection.sendall(wire.STOP)
            pids.append(int(description["pid"]))
    for pid in pids:
        _wait_for_end(pid)
    return len(pids)


def _wait_for_end(pid: int) -> None:
    process = processes.pidfd(pid)
    if process is not None:
        select.select([process], [], [], _ANSWER_TIMEOUT)
        os.close(process)


def _ask(path: Path) -> dict[str, Any] | None:
    """The description of the server at ``path``; None if none listens."""
    connection = wire.connect(path)
    if connection is None:
        return None
    with connection:
        connection.settimeout(_ANSWER_TIMEOUT)
        try:
            connection.sendall(wire.INFO)
            answer = wire.receive(connection)
        except (ConnectionError, TimeoutError):
            return None
    return None if answer is None else dict(answer)


@contextlib.contextmanager
def _start_lock(name: str) -> Iterator[None]:
    """Held while a server is started, so that several commands at once start one; 16 files stand for all names."""
    with (private_folder("servers") / f"start-{name[0]}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _require_linux() -> None:
    if sys.platform != "linux":
        message = f"The fork server needs Linux, and this is {sys.platform}; use --in-process."
        raise UsageError("platform", message)


def _start(spec: ServerSpec, name: str, *, kept: bool) -> Server:
    folder = private_folder("servers")
    seed = chosen_hash_seed(spec, os.environ)
    ready_read, ready_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    config = Config(
        folder=str(folder),
        name=name,
        profile=spec.profile,
        hash_seed=seed,
        entry=spec.entry,
        idle=idle_seconds() if kept else 0,
        owner=os.getpid(),
        ready=ready_write,
        lifeline=lifeline_read,
    )
    command = [
        sys.executable,
        *interpreter_options(),
        "-c",
        _BOOTSTRAP,
        str(PACKAGE.parent),
        json.dumps(asdict(config)),
    ]
    environment = {**os.environ, **environment_variables(spec.profile), "PYTHONHASHSEED": seed}
    try:
        with config.log.open("w") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(ready_write, lifeline_read),
            )
        os.close(ready_write)
        process.wait()  # only until it has put the server into a process of its own
        description = _wait_until_ready(ready_read, config)
    except BaseException:
        os.close(lifeline_write)
        raise
    finally:
        os.close(ready_read)
        os.close(lifeline_read)
    if kept:
        os.close(lifeline_write)
    return Server(spec, config.socket, description, None if kept else lifeline_write)


def _wait_until_ready(ready: int, config: Config) -> dict[str, Any]:
    deadline = time.monotonic() + _START_TIMEOUT
    answer = b""
    while not answer.endswith(b"\n"):
        if not select.select([ready], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise _cannot_start(config, f"it was not ready after {_START_TIMEOUT:g} s")
        part = os.read(ready, 1 << 16)
        if not part:
            raise _cannot_start(config, "it ended while it started")
        answer += part
    return dict(json.loads(answer))


def _cannot_start(config: Config, why: str) -> OpguardError:
    lines = config.log.read_text(errors="replace").splitlines() if config.log.exists() else []
    text = "\n".join(lines[-20:]) or "(it printed nothing)"
    return OpguardError("server-start", f"The fork server did not start: {why}. What it printed:\n{text}")
