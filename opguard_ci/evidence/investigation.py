"""Two commands that should train alike: replays of each, where they part, and whether that is code or environment."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from opguard_ci.compare import compare_traces
from opguard_ci.compare.verdict import nothing_compared
from opguard_ci.errors import IncomparableError, UsageError
from opguard_ci.evidence.attribution import attribute
from opguard_ci.evidence.rerun import zoom_sides
from opguard_ci.evidence.zoom import Side
from opguard_ci.recipe import parse_target
from opguard_ci.trace.reader import Trace, read_trace
from opguard_ci.worker import client
from opguard_ci.worker.checkout import find_checkout
from opguard_ci.worker.commits import Run
from opguard_ci.worker.interpreter import Interpreter, find_python, variables_set
from opguard_ci.worker.request import RunRequest, RunResult
from opguard_ci.worker.servers import Server

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class Command:
    """What is run: a target with its arguments. ``python`` None is the one that runs this; ``variables`` are added."""

    target: str
    argv: tuple[str, ...] = ()
    python: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The target and its arguments as one would type them."""
        return shlex.join([self.target, *self.argv])

    def inside(self, other: Command) -> Command:
        """The same target and arguments under the other's Python and variables."""
        return replace(self, python=other.python, variables=other.variables)

    def to_json(self) -> dict[str, Any]:
        """How reports name it."""
        python = {"python": self.python or sys.executable, "own_python": self.python is None}
        return {"command": self.text, **python, "variables": dict(self.variables)}


def parse_command(text: str, python: str | None, variables: Mapping[str, str]) -> Command:
    """Read a command: variables, a Python and the target may stand in it as in a shell; options of ours come first.

    Raises ``UsageError`` ``bad-command`` and ``python-not-found``.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError("bad-command", f"{text!r} cannot be split into words: {error}.") from None
    own: dict[str, str] = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, own[name] = words.pop(0).partition("=")
    if words and _PYTHON.fullmatch(Path(words[0]).name):
        program = words.pop(0)
        python = python or program
    if not words or words[0].startswith("-"):
        raise UsageError(
            "bad-command", f"{text!r} names no target: write [python] path/file.py ARGS…, or package.module:function."
        )
    found = find_python(python) if python is not None else None
    return Command(words[0], tuple(words[1:]), found, {**own, **variables})


class Investigation:
    """Runs the commands. ``request``: level, profile, steps, timeout and working directory of every run."""

    def __init__(self, request: RunRequest, folder: Path, progress: Callable[[str], None]) -> None:
        """``folder`` takes the traces."""
        self._request = request
        self._folder = folder
        self._progress = progress
        self._interpreters: dict[tuple[str, tuple[tuple[str, str], ...]], Interpreter] = {}

    def run(self, a: Command, b: Command) -> dict[str, Any]:
        """The ``compare`` object with A as the reference and B as the candidate, and what the replays gave."""
        for command in (a, b):
            parse_target(command.target, self._request.cwd)  # a mistake is told before anything is started
        with tempfile.TemporaryDirectory(prefix="opguard-python-") as self._scratch:
            return self._run(a, b)

    def _run(self, a: Command, b: Command) -> dict[str, Any]:
        sides = {"a": a, "b": b}
        described = {name: command.to_json() for name, command in sides.items()}
        traces: dict[str, Trace] = {}
        unstable = None
        for name, command in sides.items():
            runs = []
            for number in (1, 2):
                result = self._measure(command, f"{name}-{number}", number)
                if result.status != "ok":
                    return {**_untestable(name, result), **described}
                runs.append(read_trace(str(self._folder / f"{name}-{number}")))
            traces[name] = runs[0]
            replayed = compare_traces(*runs).to_json()
            is_stable = replayed["verdict"] != "diverged"
            described[name]["replay"] = {
                "verdict": replayed["verdict"] if is_stable else "unstable",
                "first_divergence": replayed["first_divergence"],
            }
            if not is_stable and unstable is None:
                unstable = (name, replayed)
        document = compare_traces(traces["a"], traces["b"], across_environments=True).to_json()
        if unstable is not None:
            name, replayed = unstable
            document.update(verdict="unstable", first_divergence=replayed["first_divergence"])
            document["notes"].append(
                f"{name.upper()} does not repeat itself, so nothing follows from a difference between the two; the "
                "divergence shown is that between its own two runs."
            )
        elif document["verdict"] == "diverged":
            self._tell_apart(a, b, traces, document)
            self._zoom(a, b, traces, document)
        for name, side in (("a", "reference"), ("b", "candidate")):
            document[side]["trace"] = str(self._folder / f"{name}-1")
            described[name]["environment"] = traces[name].manifest["environment"]
        return {**document, **described}

    def _tell_apart(self, a: Command, b: Command, traces: Mapping[str, Trace], document: dict[str, Any]) -> None:
        """Run A under B's Python and variables, if both these and the commands differ."""
        if (a.python, a.variables) == (b.python, b.variables):
            return
        crossed = traces["b"]
        if a.text != b.text:
            result = self._measure(a.inside(b), "a-inside-b", 1)
            if result.status != "ok":
                document["notes"].append(
                    "Environment and code are not told apart: A does not run under the Python and the variables of B "
                    f"({result.outcome.get('message')})"
                )
                return
            crossed = read_trace(str(self._folder / "a-inside-b"))
        try:
            document["attribution"] = attribute(traces["a"], crossed, traces["b"])
        except IncomparableError as error:
            document["notes"].append(f"Environment and code are not told apart: {error.message}")

    def _zoom(self, a: Command, b: Command, traces: Mapping[str, Trace], document: dict[str, Any]) -> None:
        """Measure how much differs, by further runs of both."""
        with tempfile.TemporaryDirectory(prefix="opguard-zoom-") as scratch:

            def again(name: str, command: Command, plan: Path | None) -> Run:
                folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scratch))
                result = self._measure(
                    command, str(folder), 1 + (plan is None), keep=None if plan is None else str(plan)
                )
                return Run(folder, result, None)

            sides = (
                Side(side, traces[name], partial(again, name, command))
                for side, name, command in (("reference", "a", a), ("candidate", "b", b))
            )
            zoom_sides(document, *sides)

    def _measure(self, command: Command, name: str, number: int, keep: str | None = None) -> RunResult:
        self._progress(f"running {command.text} ({name})")
        file = parse_target(command.target, self._request.cwd).file
        checkout = find_checkout(file.parent if file is not None else Path(self._request.cwd))
        request = client.with_profile(
            replace(
                self._request,
                target=command.target,
                argv=command.argv,
                output=str(self._folder / name),
                root=checkout.root,
                commit=checkout.commit,
                tree=checkout.tree,
                keep=keep,
            )
        )
        assert request.profile is not None
        if command.python is not None:
            return self._interpreter(command).run(request, hash_seed=number)
        with variables_set(command.variables):
            return client.run(request, server=Server.connect(request.profile, instance=number - 1))

    def _interpreter(self, command: Command) -> Interpreter:
        assert command.python is not None
        key = (command.python, tuple(sorted(command.variables.items())))
        if key not in self._interpreters:
            place = Path(self._scratch, str(len(self._interpreters)))
            self._interpreters[key] = Interpreter(command.python, command.variables, place)
        return self._interpreters[key]


def _untestable(name: str, result: RunResult) -> dict[str, Any]:
    outcome = result.outcome
    return {
        **nothing_compared("untestable"),
        "error": {key: outcome.get(key) or "" for key in ("slug", "message", "traceback")},
        "notes": [f"This is {name.upper()}.", *outcome.get("notes", ())],
    }
