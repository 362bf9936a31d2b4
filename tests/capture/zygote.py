"""Imports torch once, then runs one program per line of stdin in a fork of itself: captured, or bare."""

# ruff: noqa: E402 (what is imported stays: to look for garbage meanwhile would take a quarter of the time)
from __future__ import annotations

import gc

gc.disable()

import atexit
import contextlib
import importlib
import itertools
import json
import os
import runpy
import sys
import threading
import traceback
from typing import Any

from opguard_ci.capture.run import execute
from opguard_ci.determinism import profile
from opguard_ci.errors import OpguardError
from opguard_ci.recipe import load_function, options_of, parse_target
from opguard_ci.worker.request import RunRequest


def main() -> None:
    """Serve until stdin ends."""
    gc.collect()
    gc.enable()
    gc.freeze()  # else every child copies the whole heap at its first collection
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(job)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


def run(job: dict[str, Any]) -> None:
    """What the child does; the answer of a run that raised is the error."""
    for path, descriptor in ((job["stdout"], 1), (job["stderr"], 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    request = RunRequest.from_json(job["request"])
    os.chdir(request.cwd)
    os.environ.update(job["variables"])
    mine = os.getpid()
    try:
        profile.apply(request.profile or "observe")
        answer = run_bare(request) if job["bare"] else execute(request)
    except OpguardError as error:
        answer = {"status": "error", "class": type(error).__name__, "slug": error.slug, "message": error.message}
    except BaseException as error:
        traceback.print_exc()
        answer = {"status": "error", "class": type(error).__name__, "slug": "", "message": str(error)}
    if os.getpid() != mine:
        os._exit(0)
    with open(job["answer"], "w") as file:  # noqa: PTH123
        json.dump(answer, file)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def run_bare(request: RunRequest) -> dict[str, Any]:
    """The same program without capture."""
    target = parse_target(request.target, request.cwd)
    sys.path[:0] = target.search_path(request.cwd, request.root)
    sys.argv = [target.text, *request.argv]
    if target.function is None:
        with contextlib.suppress(SystemExit):
            runpy.run_path(str(target.file), run_name="__main__")
        return {"status": "ok"}
    function = load_function(target)
    options = options_of(function)
    if options is not None:
        for _ in itertools.islice(function(), options.steps):
            continue
    else:
        function()
    return {"status": "ok"}


if __name__ == "__main__":
    for name in ("numpy.random", "torch._inductor.output_code", "pyarrow", "torch.utils.data"):
        importlib.import_module(name)
    main()
