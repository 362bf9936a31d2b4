"""How the process of a run ended, in words for a person. Pure."""

from __future__ import annotations

import re
import signal
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from opguard_ci.worker.request import RunRequest

_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_OURS: Final = f"{Path(__file__).resolve().parent.parent}/"
_STANDARD_LIBRARY: Final = f"{sysconfig.get_path('stdlib')}/"
_SERVER_START: Final = ("<string>", "<module>")
_ASKED_TO_GO: Final = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


@dataclass(frozen=True, slots=True)
class Ending:
    """What the warden saw.

    ``how``: ``exit`` and ``signal`` with their number in ``code``, ``timeout``, ``server-lost``, ``warden-lost``
    when it is the client that had to find out, ``rank-lost`` for a rank that was ended because another had failed.
    ``message`` is what the child sent before. ``stack`` is faulthandler's text.
    """

    how: Literal["exit", "signal", "timeout", "server-lost", "warden-lost", "rank-lost"]
    code: int = 0
    message: Mapping[str, Any] | None = None
    stack: str = ""
    left: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a faulthandler stack."""

    file: str
    line: int
    function: str


def operator_in(breadcrumb: bytes) -> str | None:
    """The operator that the recorder noted last; None if it noted none."""
    return breadcrumb.split(b"\0", 1)[0].decode(errors="replace") or None


def user_stack(text: str) -> list[Frame]:
    """The user's frames of the first thread that has any, innermost first; the current thread goes before others."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            threads.append((line.startswith("Current"), []))
        elif threads and (match := _FRAME.match(line)):
            frame = Frame(match["file"], int(match["line"]), match["function"])
            if _is_users(frame.file) and (frame.file, frame.function) != _SERVER_START:
                threads[-1][1].append(frame)
    threads.sort(key=lambda thread: not thread[0])
    return next((frames for _, frames in threads if frames), [])


def _is_users(file: str) -> bool:
    installed = "/site-packages/" in file or "/dist-packages/" in file
    return not (installed or file.startswith((_OURS, _STANDARD_LIBRARY, "<frozen")))


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def outcome_of(ending: Ending, request: RunRequest, breadcrumb: bytes) -> dict[str, Any]:
    """What the child reported, or what can be said about a run that could not report.

    The result has the keys of an outcome: ``status``, ``notes``, and if untestable ``slug``, ``message`` and
    ``traceback``.
    """
    if ending.message is not None:
        outcome = dict(ending.message)
        afterwards = _afterwards(ending)
        outcome["notes"] = [*outcome.get("notes", ()), *afterwards]
        return outcome
    stack = user_stack(ending.stack)
    slug, what = _without_outcome(ending, request)
    where = []
    if operator := operator_in(breadcrumb):
        where.append(f"the last operator was {operator}")
    if stack:
        where.append(f"at {stack[0].file}:{stack[0].line} in {stack[0].function}")
    message = f"{request.target} {what}" + (f"; {', '.join(where)}." if where else ".")
    lines = [f'  File "{frame.file}", line {frame.line}, in {frame.function}\n' for frame in reversed(stack)]
    traceback = "".join(["Stack (most recent call last):\n", *lines]) if lines else ""
    return {"status": "untestable", "slug": slug, "message": message, "traceback": traceback, "notes": []}


def _without_outcome(ending: Ending, request: RunRequest) -> tuple[str, str]:
    if ending.how == "timeout":
        return "timeout", f"was ended after its timeout of {request.timeout:g} s"
    if ending.how == "server-lost":
        return "killed", "was ended because its fork server was killed"
    if ending.how == "warden-lost":
        return "killed", "was ended because the process that watched it was killed"
    if ending.how == "rank-lost":
        return "killed", "was ended because another rank had failed"
    if ending.how == "exit":
        return "crashed", f"ended its process with os._exit or a C exit, code {ending.code}, before it was done"
    name = signal_name(ending.code)
    if ending.code == signal.SIGKILL:
        return "killed", f"was ended by {name}, by somebody or because memory ran out"
    if ending.code in _ASKED_TO_GO:
        return "killed", f"was ended by {name}"
    return "crashed", f"crashed with {name}"


def _afterwards(ending: Ending) -> list[str]:
    notes = []
    if ending.how == "signal":
        notes.append(f"After the run was complete its process crashed with {signal_name(ending.code)}.")
    elif ending.how == "timeout":
        notes.append("After the run was complete its process did not end by itself, and was ended.")
    if ending.stuck:
        notes.append(f"These processes of the run could not be ended: {', '.join(ending.stuck)}.")
    return notes
