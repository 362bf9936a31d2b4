"""Runs a target in several processes on this machine, by torch's own launcher, and accounts for each of them.

The process of a run becomes the launcher (torchrun's elastic agent). What the agent starts for each rank is a guard, a
fork of the launcher, and the rank itself is a fork of its guard: so the guard sees how the rank ends, whatever its end
is, and ends the rank and all that it has started when the agent says so, at the timeout, or when the launcher goes.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import time
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from opguard_ci import errors
from opguard_ci.errors import OpguardError, UntestableError
from opguard_ci.trace.ranks import merge_parts
from opguard_ci.trace.writer import make_folder
from opguard_ci.worker import child, processes, wire
from opguard_ci.worker.ending import Ending, operator_in, outcome_of
from opguard_ci.worker.request import RunRequest

ENTRY: Final = "opguard_ci.capture.run:execute"
_BREADCRUMB_BYTES: Final = 256
_STACK_LIMIT: Final = 256 << 10
_MONITOR: Final = 0.05
"""Seconds between two looks of the agent at its processes."""
_DUMP: Final = 1.0
"""Seconds that a rank has to write its Python stack at the timeout."""
_FINISH: Final = 5.0
"""Seconds that a rank has for its exit functions and threads after it has told its outcome."""

_NO_DEVICES: Final = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUDA_VISIBLE_DEVICES": ""}
"""What the launcher runs under. It asks for devices, but neither CUDA nor its management library survives a fork that
closes their files."""


@dataclass(frozen=True, slots=True)
class _Post:
    """What one rank and its guard share with the launcher: files in memory."""

    outcome: int
    ending: int
    stack: int
    breadcrumb: int

    @classmethod
    def open(cls, rank: int) -> _Post:
        files = [os.memfd_create(f"opguard-{name}-{rank}") for name in ("outcome", "ending", "stack", "breadcrumb")]
        os.ftruncate(files[3], _BREADCRUMB_BYTES)
        return cls(*files)

    def close(self) -> None:
        for descriptor in (self.outcome, self.ending, self.stack, self.breadcrumb):
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Files:
    """Those of all ranks, and the descriptors that imported libraries hold."""

    posts: list[_Post]
    keep: Collection[int]


@dataclass(frozen=True, slots=True)
class _Rank:
    """What came of one rank: an outcome, or an error for whoever asked for the run."""

    number: int
    ending: Ending
    outcome: dict[str, Any]
    error: dict[str, str] | None
    failed_at: float
    operator: str | None


def launch(request: RunRequest, entry: str = ENTRY) -> dict[str, Any]:
    """Run ``request.target`` in ``request.ranks`` processes; the outcome of all of them.

    The first rank that failed decides: its outcome is the run's, with its number as ``rank``. Must be called in a
    process of its own, before anything was computed in it. ``entry`` is what each rank calls with the request.

    Raises:
        UsageError: What is wrong with the request, as the ranks found it.
        UntestableError: ``launcher-failed``: torch's launcher did not come to start the ranks.

    """
    begin = time.monotonic()
    make_folder(Path(request.output))
    keep = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - {0, 1, 2}
    posts = [_Post.open(rank) for rank in range(request.ranks)]
    try:
        with _undisturbed() as asked:
            _start(_Guard(request, entry, begin + request.timeout, _Files(posts, keep), asked))
        ranks = [_account(request, rank, post) for rank, post in enumerate(posts)]
    finally:
        for post in posts:
            post.close()
    outcome, first = _together(request, ranks)
    manifest = merge_parts(Path(request.output), outcome, None if first is None else first.operator)
    if manifest is not None:
        outcome |= {"steps": len(manifest["steps"]), "coverage": manifest["coverage"]}
        outcome["notes"] = list(dict.fromkeys([*manifest["notes"], *outcome["notes"]]))
    return outcome


def as_launched() -> None:
    """Do what torchrun does to each process of several: one thread, unless OMP_NUM_THREADS says another number."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)


# The launcher


def _start(guard: _Guard) -> None:
    """Have torch's launcher run the guards of all ranks, and wait for the end of them."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    class NoFiles(LogsSpecs):
        """The ranks write to where the run writes."""

        def __init__(self) -> None:
            super().__init__()

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            none = dict.fromkeys(envs, "")
            return LogsDest(stdouts=none, stderrs=none, tee_stdouts={}, tee_stderrs={}, error_files=none)

        @property
        def root_log_dir(self) -> str:
            return ""

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=guard.request.ranks,
        run_id="opguard",
        # The store takes a free port as it begins to listen, and the ranks use the same store.
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"is_host": True},
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=_MONITOR,
        start_method="fork",
        logs_specs=NoFiles(),
    )
    try:
        elastic_launch(config, guard)()
    except ChildFailedError:
        return  # what failed is in the ranks' files
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise UntestableError(
            "launcher-failed", f"torch's launcher failed with {type(error).__name__}: {first_line}"
        ) from error


@contextmanager
def _undisturbed() -> Iterator[dict[str, str | None]]:
    """Keep the launcher to this machine, and silent, and devices to the ranks; the variables that they get back."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.pop("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", None)
    asked = {name: os.environ.get(name) for name in _NO_DEVICES}
    os.environ.update(_NO_DEVICES)
    logging.disable(logging.CRITICAL)  # it would tell the user's terminal what the outcome says
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*")
            yield asked
    finally:
        logging.disable(logging.NOTSET)
        _restore(asked)


def _restore(asked: dict[str, str | None]) -> None:
    for name, text in asked.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


# The guard of a rank


class _Stop(BaseException):
    """The agent ends this rank, or the launcher has gone."""


class _Guard:
    """What the agent runs for each rank, in a process of its own."""

    def __init__(
        self, request: RunRequest, entry: str, deadline: float, files: _Files, asked: dict[str, str | None]
    ) -> None:
        self.request = request
        self._entry, self._deadline, self._files, self._asked = entry, deadline, files, asked
        self.__name__ = self.__qualname__ = "opguard_rank"  # the launcher asks

    def __call__(self) -> str:
        """Run the rank; returns if it came to its end, else ends this process with status 1."""
        processes.become_subreaper()
        processes.set_name("opguard-rank")
        rank = int(os.environ["RANK"])
        post = self._files.posts[rank]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, _stop)
        pid = 0
        how: Literal["exit", "signal", "timeout", "rank-lost"]
        try:
            pid = os.fork()
            if pid == 0:
                self._become(rank, post, os.getppid())
            how = self._until_over(pid, post)
        except _Stop:
            how = "rank-lost"
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        if how == "timeout":
            _ask_for_stack(pid)
        code = _end(pid, patient=how == "exit")
        if how == "exit" and code < 0:
            how, code = "signal", -code
        os.pwrite(post.ending, json.dumps({"how": how, "code": code, "at": time.monotonic()}).encode(), 0)
        told = _told(post)
        if how != "exit" or told is None or told.get("outcome", {}).get("status") != "ok":
            os._exit(1)
        return how

    def _become(self, rank: int, post: _Post, guard: int) -> NoReturn:
        """The rank itself."""
        _restore(self._asked)
        logging.disable(logging.NOTSET)
        job = child.Job(
            request=replace(self.request, rank=rank, breadcrumb=None),
            entry=self._entry,
            environment=dict(os.environ),
            umask=os.umask(0),
            stdout=1,
            stderr=2,
            breadcrumb=post.breadcrumb,
            outcome=post.outcome,
            stack=post.stack,
            keep=self._files.keep,
        )
        child.main(job, guard)

    def _until_over(self, pid: int, post: _Post) -> Literal["exit", "timeout"]:
        process = os.pidfd_open(pid)
        deadline = self._deadline
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return "timeout"
            # An outcome is a file, at which nobody can wait.
            if select.select([process], [], [], min(remaining, 1.0))[0]:
                return "exit"
            if deadline == self._deadline and os.fstat(post.outcome).st_size:
                deadline = min(deadline, time.monotonic() + _FINISH)


def _stop(number: int, frame: object) -> NoReturn:
    raise _Stop


def _ask_for_stack(pid: int) -> None:
    process = processes.pidfd(pid)
    if process is not None:
        processes.kill(pid, signal.SIGABRT)
        select.select([process], [], [], _DUMP)
        os.close(process)


def _end(pid: int, *, patient: bool) -> int:
    """End what is left of a rank; its exit code, or the number of its signal below zero."""
    if not pid:
        return 0
    if not patient:
        processes.kill(pid)
    _, status = os.waitpid(pid, 0)
    processes.end_descendants(patient=patient)
    return os.waitstatus_to_exitcode(status)


# What came of it


def _told(post: _Post) -> dict[str, Any] | None:
    """What the rank itself had to say; None if it did not come to that."""
    data = os.pread(post.outcome, os.fstat(post.outcome).st_size, 0)
    return next(iter(wire.Frames().feed(data)), None)


def _account(request: RunRequest, number: int, post: _Post) -> _Rank:
    told = _told(post)
    report: dict[str, Any] = {"how": "rank-lost", "code": 0, "at": time.monotonic()}
    with suppress(ValueError):
        report |= json.loads(os.pread(post.ending, 4096, 0))
    message = None if told is None else told.get("outcome")
    stack = os.pread(post.stack, _STACK_LIMIT, 0).decode(errors="replace")
    breadcrumb = os.pread(post.breadcrumb, _BREADCRUMB_BYTES, 0)
    ending = Ending(report["how"], report["code"], message, stack)
    error = None if told is None else told.get("error")
    outcome = {} if error is not None else outcome_of(ending, request, breadcrumb)
    failed_at = outcome.pop("failed_at", report["at"])
    return _Rank(number, ending, outcome, error, failed_at, operator_in(breadcrumb))


def _together(request: RunRequest, ranks: list[_Rank]) -> tuple[dict[str, Any], _Rank | None]:
    """The outcome of the run, and the rank that decides it; None if all came to their end."""
    for rank in ranks:
        if rank.error is not None:
            kind = getattr(errors, rank.error["class"], OpguardError)
            raise kind(rank.error["slug"], rank.error["message"])
    failed = [rank for rank in ranks if rank.outcome["status"] != "ok"]
    if not failed:
        notes = [note for rank in ranks for note in rank.outcome.get("notes", ())]
        return {**ranks[0].outcome, "notes": list(dict.fromkeys(notes))}, None
    first = min(failed, key=_blame)
    outcome = {**first.outcome, "rank": first.number, "message": f"rank {first.number}: {first.outcome['message']}"}
    outcome["notes"] = [*outcome.get("notes", ()), *(_fate(rank) for rank in ranks if rank is not first)]
    return outcome, first


def _blame(rank: _Rank) -> tuple[int, bool, float]:
    """What makes a rank the first to have failed: others fail after it because it is no longer there.

    A rank that died on its own goes before one that raised, since what ranks do when a peer has gone is to raise; one
    that was waiting in a collective at the timeout goes after one that was not.
    """
    if rank.ending.message is not None:
        return 1, False, rank.failed_at
    if rank.ending.how in ("exit", "signal"):
        return 0, False, rank.failed_at
    return (2 if rank.ending.how == "timeout" else 3), _is_collective(rank.operator), rank.failed_at


def _is_collective(operator: str | None) -> bool:
    return operator is not None and operator.startswith(("c10d.", "_c10d_functional."))


def _fate(rank: _Rank) -> str:
    if rank.outcome["status"] == "ok":
        return f"rank {rank.number} came to its end."
    where = f" (its last operator: {rank.operator})" if rank.operator else ""
    if rank.ending.how == "rank-lost":
        return f"rank {rank.number} was ended because of that{where}."
    return f"rank {rank.number}: {rank.outcome['message']}"
