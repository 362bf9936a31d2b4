"""Runs small programs under capture, each in its own process, and reads what came of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_ci.determinism import profile as profiles
from opguard_ci.trace.model import Event
from opguard_ci.trace.reader import Trace, read_trace
from opguard_ci.worker.request import RunRequest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that ran. ``exit``: status of its process, negative for a signal."""

    answer: dict[str, Any]
    folder: Path
    stdout: str
    stderr: str
    exit: int

    @property
    def ok(self) -> bool:
        """Whether the target came to its end."""
        return self.answer.get("status") == "ok"

    @property
    def trace(self) -> Trace:
        """The trace that it left."""
        return read_trace(self.folder)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of its trace."""
        return self.trace.manifest

    def events(self, *ops: str, step: int | None = None, kinds: tuple[str, ...] = ()) -> list[Event]:
        """Events whose operator begins with one of ``ops``, contract values left out unless asked for by kind."""
        found = itertools.chain.from_iterable(table.events() for table in self.trace.steps())
        return [
            event
            for event in found
            if (not ops or (event.op in ops or event.op.startswith(tuple(f"{op}." for op in ops))))
            and (step is None or event.step == step)
            and (event.kind in kinds if kinds else event.kind != "contract")
        ]

    def contract(self, section: str | None = None, step: int | None = None) -> dict[str, Event]:
        """Contract values by name; the last one of each name unless a step is named."""
        events = self.events(step=step, kinds=("contract",))
        return {event.args: event for event in events if section is None or event.op == section}

    @property
    def steps(self) -> list[int]:
        """The numbers of the steps in the trace."""
        return [step["step"] for step in self.manifest["steps"]]

    @property
    def digests(self) -> list[dict[str, Any]]:
        """The digests of each step."""
        return [step["digests"] for step in self.manifest["steps"]]


@functools.cache
def _zygote(profile: str) -> subprocess.Popen[str]:
    """The process that all programs under a profile are forked from; it ends when nothing more can be asked of it."""
    environment = {**os.environ, **profiles.environment_variables(profile), "PYTHONPATH": str(ROOT)}
    if profile == "observe":
        environment |= {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.capture.zygote"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Runner:
    """Forks programs from a process that has imported torch, the same for all runners of a profile."""

    def __init__(self, profile: str = "observe", **more: str) -> None:
        """``more``: variables that are read when a program runs, for its environment."""
        self._profile = profile
        self._process = _zygote(profile)
        self._variables = more

    def run(self, target: str, folder: Path, *, bare: bool = False, **options: Any) -> Ran:
        """Run a target; its files lie in ``folder``, which is the working directory unless ``cwd`` says otherwise."""
        number = next(number for number in itertools.count() if not (folder / f"run-{number}").exists())
        place = folder / f"run-{number}"
        place.mkdir()
        options.setdefault("cwd", str(folder))
        request = RunRequest(target, output=str(place / "trace"), profile=self._profile, **options)  # type: ignore[arg-type]
        names = {name: str(place / name) for name in ("stdout", "stderr", "answer")}
        job = {"request": request.to_json(), "bare": bare, "variables": self._variables, **names}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        status = json.loads(self._process.stdout.readline())["status"]
        answer = {}
        with contextlib.suppress(FileNotFoundError):
            answer = json.loads((place / "answer").read_text())
        return Ran(answer, place / "trace", *(Path(names[n]).read_text() for n in ("stdout", "stderr")), status)


@dataclass(frozen=True, slots=True)
class Programs:
    """Writes programs into a folder of the test and runs them."""

    runner: Runner
    folder: Path

    def write(self, name: str, source: str) -> Path:
        """Write a file below the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    def run(self, source: str, function: str | None = "main", **options: Any) -> Ran:
        """Run a program: its function, or the file as a script for None."""
        path = self.write("program.py", source)
        return self.runner.run(f"{path.name}:{function}" if function else path.name, self.folder, **options)

    def again(self, target: str, **options: Any) -> Ran:
        """Run a target among the files that are there."""
        return self.runner.run(target, self.folder, **options)
