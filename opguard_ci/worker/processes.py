"""Linux processes: who descends from whom, and how to end all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_LEAVE_BY_THEMSELVES: Final = 0.2
"""Seconds in which helpers (a resource tracker, say) may end on their own and clean up after themselves."""
_GIVE_UP: Final = 10.0
"""Seconds after which a process that SIGKILL does not end (stuck in the kernel) is reported instead."""

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: object) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process rather than of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Asks for SIGKILL when ``parent`` ends, also when it ended before this call."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_name(name: str) -> None:
    """Names this process in ``ps`` and ``top`` (15 bytes at most)."""
    _prctl(_PR_SET_NAME, name.encode())


def pidfd(pid: int) -> int | None:
    """A file descriptor that becomes readable when the process ends; None if it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def stat(pid: int) -> tuple[str, str, int, int, int] | None:
    """Name, state letter, parent, session and start time (clock ticks since boot) of a process; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, rest[0], int(rest[1]), int(rest[3]), int(rest[19])


def identity(pid: int) -> str:
    """Process id and start time: differs for two processes even if the id was used again."""
    found = stat(pid)
    return f"{pid}-{found[4] if found else 0}"


def thread_names() -> list[str]:
    """The names of the other threads of this process, sorted."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        if int(thread.name) != os.getpid():
            with contextlib.suppress(OSError):
                names.append((thread / "comm").read_text().strip())
    return sorted(names)


def _processes() -> Iterable[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def descendants(root: int, keep: Collection[int] = ()) -> list[tuple[int, str]]:
    """Process id and name of all living descendants of ``root``, without those in ``keep`` and below."""
    children: dict[int, list[tuple[int, str, str]]] = {}
    for pid in _processes():
        found = stat(pid)
        if found:
            children.setdefault(found[2], []).append((pid, found[0], found[1]))
    result: list[tuple[int, str]] = []
    queue = [root]
    while queue:
        for pid, name, state in children.get(queue.pop(), ()):
            if pid not in keep:
                queue.append(pid)
                if state not in "ZX":
                    result.append((pid, name))
    return result


def members_of_session(session: int) -> list[int]:
    """The living processes of a session."""
    found = ((pid, stat(pid)) for pid in _processes())
    return [pid for pid, entry in found if entry and entry[3] == session and entry[1] not in "ZX"]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal; a process that has gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _reap() -> bool:
    """Collects ended children; False when there are no children at all, dead or alive."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_descendants(*, patient: bool = False) -> tuple[list[str], list[str]]:
    """Ends every descendant of this process, which must be a subreaper.

    ``patient`` first gives them a moment to end on their own. Returns the names of those that were ended and of those
    that could not be. The walk is repeated until none is left, since a process may fork while the list is read.
    """
    begin = time.monotonic()
    ended: dict[int, str] = {}
    alive: list[tuple[int, str]] = []
    pause = 0.0005
    while _reap():
        elapsed = time.monotonic() - begin
        if elapsed > _GIVE_UP:
            alive = descendants(os.getpid())
            break
        if not patient or elapsed > _LEAVE_BY_THEMSELVES:
            for pid, name in descendants(os.getpid()):
                ended[pid] = name
                kill(pid)
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    stuck = {pid for pid, _ in alive}
    return [name for pid, name in ended.items() if pid not in stuck], [name for _, name in alive]


def end_orphans(keep: Collection[int]) -> None:
    """Ends the descendants that a killed warden left to this process; ``keep`` holds the wardens that are alive."""
    deadline = time.monotonic() + _GIVE_UP
    while (left := descendants(os.getpid(), keep)) and time.monotonic() < deadline:
        for pid, _ in left:
            kill(pid)
        for pid, _ in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
