"""Another Python than ours that trains: what it has, what is lent to it, and a run in it. Nothing is installed there.

It needs torch and numpy of its own. This package, and what a trace is written with, are lent through a folder of links
that stands in its ``sys.path``; compiled packages only to a Python of the same version and platform.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from opguard_ci.determinism.profile import environment_variables
from opguard_ci.errors import OpguardError, UsageError
from opguard_ci.worker.identity import PACKAGE
from opguard_ci.worker.request import RunRequest, RunResult

OWN: Final = ("torch", "numpy")
LENT: Final = ("xxhash", "pyarrow")
_START: Final = 120.0
"""Seconds that a Python may take to start and to import torch, beside the run's own time."""

_PROBE: Final = """
import importlib.metadata, importlib.util, json, platform, sys, sysconfig
names = sys.argv[1:]
print(json.dumps({
    "abi": sysconfig.get_config_var("EXT_SUFFIX"),
    "python": platform.python_version(),
    "has": [name for name in names if importlib.util.find_spec(name)],
    "torch": next((d.version for d in importlib.metadata.distributions(name="torch")), None),
}))
"""
_RUN: Final = """
import sys
folder, request, answer = sys.argv[1:]
sys.argv[:] = [""]
sys.path[:] = [folder, *(entry for entry in sys.path if entry)]
from opguard_ci.worker.alone import main
main(request, answer)
"""


def find_python(name: str) -> str | None:
    """The full path of a Python by path or name; None where it is the one that runs this.

    Raises ``UsageError`` ``python-not-found``.
    """
    found = shutil.which(name)
    if found is None:
        raise UsageError("python-not-found", f"There is no program {name!r}; name the Python that trains, by its path.")
    path = Path(found).absolute()
    own = Path(sys.executable)
    return None if path.parent == own.parent and path.resolve() == own.resolve() else str(path)


class Interpreter:
    """A Python at a path, with the variables under which it is to be started.

    Raises ``UsageError`` ``python-lacks`` where something is missing in it that cannot be lent.
    """

    def __init__(self, path: str, variables: Mapping[str, str], scratch: Path) -> None:
        """``scratch``: an empty or absent folder for links and messages, for as long as the interpreter is used."""
        self.path = path
        self._variables = dict(variables)
        self._scratch = scratch
        self._links = scratch / "lent"
        self._links.mkdir(parents=True)
        (self._links / PACKAGE.name).symlink_to(PACKAGE)
        found = self._probe()
        self.torch, self.python = str(found["torch"]), str(found["python"])
        self._lend(found)
        self._num_runs = 0

    def run(self, request: RunRequest, hash_seed: int) -> RunResult:
        """Run a target and wait for its end; what it started in its own process group ends with it.

        ``hash_seed``: PYTHONHASHSEED, where neither the profile nor the variables set one. Raises ``UsageError`` for
        what is wrong with the request.
        """
        self._num_runs += 1
        names = [self._scratch / f"{kind}-{self._num_runs}.json" for kind in ("request", "answer")]
        names[0].write_text(json.dumps(request.to_json()))
        pinned = environment_variables(request.profile or "observe")
        environment = {"PYTHONHASHSEED": str(hash_seed), **self._environment(), **pinned}
        begin = time.monotonic()
        process = subprocess.Popen(
            [self.path, "-c", _RUN, str(self._links), *map(str, names)],
            env=environment, cwd=request.cwd, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(request.timeout + _START)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not names[1].exists():
            return _broken(request, status, time.monotonic() - begin)
        answer: dict[str, Any] = json.loads(names[1].read_bytes())
        if "error" in answer:
            raise UsageError(answer["error"]["slug"], answer["error"]["message"])
        return RunResult.from_json(answer["result"])

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._variables}

    def _probe(self) -> dict[str, Any]:
        done = subprocess.run(
            [self.path, "-c", _PROBE, *OWN, *LENT], env=self._environment(), capture_output=True, text=True, check=False
        )
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise UsageError("python-not-found", f"{self.path} is no Python that can be started: {last}.") from None

    def _lend(self, found: Mapping[str, Any]) -> None:
        missing = [name for name in (*OWN, *LENT) if name not in found["has"]]
        is_same_kind = found["abi"] == sysconfig.get_config_var("EXT_SUFFIX")
        lacking = [name for name in missing if name in OWN or not is_same_kind]
        if lacking:
            raise UsageError(
                "python-lacks", f"{self.path} (Python {found['python']}) has no {' and no '.join(lacking)}: install "
                "that there, or name the Python that trains.",
            )  # fmt: skip
        for name in missing:
            spec = importlib.util.find_spec(name)
            if spec is None or not spec.submodule_search_locations:
                raise OpguardError("internal", f"{name} is no package here.")
            (self._links / name).symlink_to(next(iter(spec.submodule_search_locations)))


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables in this process's environment, which runs on fork servers inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _broken(request: RunRequest, status: int | None, seconds: float) -> RunResult:
    """The result of a run that left none."""
    if status is None:
        slug, message = "timeout", f"It ran longer than {request.timeout:g} s and was ended."
    else:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        slug, message = "crashed", f"The interpreter ended with {how} before the run was over."
    outcome = {"status": "untestable", "slug": slug, "message": message, "traceback": "", "notes": []}
    return RunResult("untestable", outcome, request.output, seconds)
