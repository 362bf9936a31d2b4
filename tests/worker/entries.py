"""Stand-ins for a run under capture: ``request.target`` names the function of this module that plays the target."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def execute(request: Any) -> dict[str, Any]:
    value = globals()[request.target](request)
    return {"status": "ok", "value": value, "notes": []}


def nothing(request: Any) -> None:
    """Does nothing at all."""


def describe(request: Any) -> dict[str, Any]:
    from opguard_ci.determinism import environment, profile

    document = environment.environment_document()
    return {
        "pid": os.getpid(),
        "cwd": str(Path.cwd()),
        "environment": dict(os.environ),
        "hash": hash("opguard"),
        "effective": profile.effective(),
        "key": environment.environment_key(document, request.profile),
        "document": document,
        "stdin": sys.stdin.read(),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD)],
        "umask": os.umask(0),
        "descriptors": sorted(str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()),
        "main": os.getsid(0) == os.getpid(),
        "path": sys.path,
        "collects": gc.isenabled(),
    }


def draw(request: Any) -> list[float]:
    import random

    import numpy as np
    import torch

    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def train(request: Any) -> float:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(torch.rand(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss)


def speak(request: Any) -> None:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    subprocess.run(["echo", "from a program"], check=True)


def ask(request: Any) -> None:
    input()


def refuse(request: Any) -> None:
    from opguard_ci.errors import UsageError

    raise UsageError("output-exists", "The folder is taken.")


def fail(request: Any) -> None:
    raise RuntimeError("a defect")


def note_operator(request: Any, name: str) -> None:
    with Path(request.breadcrumb).open("r+b") as file:
        file.write(name.encode())


def segfault(request: Any) -> None:
    note_operator(request, "aten.mm.default")
    ctypes.string_at(0)


def kill_itself(request: Any) -> None:
    note_operator(request, "aten.add.Tensor")
    os.kill(os.getpid(), signal.SIGKILL)


def leave(request: Any) -> None:
    os._exit(int(request.argv[0]))


def fork_and_fall_through(request: Any) -> str:
    if os.fork() == 0:
        return "the child of the target"
    os.wait()
    return "the target"


def crash_at_exit(request: Any) -> None:
    import atexit

    atexit.register(os.abort)


def exit_function(request: Any) -> None:
    import atexit

    atexit.register(Path(request.argv[0]).write_text, "ran")


def start_daemon(request: Any) -> int:
    """A daemon as a daemon is made: a fork, a session of its own, another fork, deaf to SIGTERM."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid:
            os.write(write, str(pid).encode())
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        time.sleep(1000)
        os._exit(0)
    os.wait()
    return int(os.read(read, 20))


def stay(request: Any) -> None:
    """Starts a daemon, tells both process ids and never ends; deaf to SIGTERM and SIGINT."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    daemon = start_daemon(request)
    file = Path(request.argv[0])
    draft = file.with_suffix(".draft")
    draft.write_text(f"{os.getpid()} {daemon} {os.getppid()}")
    draft.rename(file)
    note_operator(request, "aten.sum.default")
    while True:
        ctypes.CDLL(None).usleep(100_000_000)
