"""Runs a target in this process under capture and leaves its trace: what every child of a fork server does."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ..determinism.environment import environment_document, environment_key
from ..determinism.profile import seed_everything, switch_on
from ..errors import OpguardError, UntestableError
from ..recipe import RecipeOptions, Target, check_callable, load_function, marking, options_of, parse_target
from ..worker import ranks
from ..worker.proof import Proof, code_of
from ..worker.request import RunRequest
from .hooks import listening
from .provenance import is_user_file
from .recording import Recording, failure
from .steps import EnoughSteps, Steps

ENVIRONMENT: Final = ":environment"
"""The target that runs nothing and returns the environment that a run would have."""
_OURS: Final = str(Path(__file__).resolve().parent.parent) + os.sep


def execute(request: RunRequest) -> dict[str, Any]:
    """Run ``request.target`` under capture; write its trace to ``request.output``.

    Returns the outcome: ``status`` (``ok`` or ``untestable``), for the latter ``slug``, ``message`` and ``traceback``
    (the user's frames), and ``steps``, ``coverage`` and ``notes``.

    Raises:
        UsageError: What is wrong before the target runs: it does not exist, the output cannot be written.

    """
    if request.ranks > 1 and request.rank is None and request.target != ENVIRONMENT:
        return ranks.launch(request)
    if request.ranks > 1:
        ranks.as_launched()
    if request.target == ENVIRONMENT:
        document = environment_document()
        key = environment_key(document, request.profile or "observe")
        return {"status": "ok", "environment": {"key": key, "document": document}}
    target = parse_target(request.target, request.cwd)
    for name in request.switches:
        switch_on(name)
    recording = Recording(request, str(target.file.parent) if target.file is not None else None)
    outcome: dict[str, Any] = {"status": "ok"}
    with recording.writing():
        try:
            with _prepared(target, request), code_of(request) as proof:
                _run(target, request, recording, proof)
        except OpguardError as error:
            if error.exit_code == 2:
                raise
            if recording.session.keeper is not None and error.__cause__ is not None:
                recording.session.keeper.saw_error(error.__cause__)
            outcome = failure(error.slug, error.message, getattr(error, "traceback", ""))
            if isinstance(error.__cause__, SystemExit):
                outcome["exit"] = _exit_status(error.__cause__)
        except KeyboardInterrupt:
            recording.finish(failure("interrupted", "The run was interrupted.", ""))
            raise
        return recording.finish(outcome)


@contextmanager
def _prepared(target: Target, request: RunRequest) -> Iterator[None]:
    """``sys.argv``, ``sys.path`` and folder as the target expects them; no ``.pyc`` is left beside its files."""
    old_argv, old_path, old_cwd = sys.argv, list(sys.path), str(Path.cwd())
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.argv = [target.text.rpartition(":")[0] or target.text, *request.argv]
    added = target.search_path(request.cwd, request.root)
    sys.path[:] = [*added, *(entry for entry in old_path if entry not in added and entry != "")]
    os.chdir(request.cwd)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = old_argv, old_path
        sys.dont_write_bytecode = writes_bytecode
        os.chdir(old_cwd)


def _run(target: Target, request: RunRequest, recording: Recording, proof: Proof) -> None:
    session = recording.session
    steps = Steps(session, request.steps)
    with listening(session, steps, operators=request.level != "contract"), marking(steps.mark):
        try:
            _call(target, request, recording, steps, proof)
        except EnoughSteps:
            pass
        except SystemExit as stop:
            _judge_exit(stop)
            with suppress(EnoughSteps):
                steps.returned(None)
        except OpguardError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise UntestableError(
                "target-raised",
                f"{request.target} raised {type(error).__name__}: {_shorten(str(error))}",
                user_traceback(error),
            ) from error
    proof.check()
    for note in proof.notes():
        recording.note(note)
    if steps.num_optimizer_steps == 0 and steps.num_steps == 0:
        recording.note("No step was seen: no yield, no mark_step, no optimizer step. The whole run counts as step 0.")


def _call(target: Target, request: RunRequest, recording: Recording, steps: Steps, proof: Proof) -> None:
    if target.function is None:
        assert target.file is not None
        _run_script(target.file, proof)
        steps.returned(None)
        return
    function = load_function(target)
    options = options_of(function)
    takes_mark = check_callable(function, target.text)
    if takes_mark:
        steps.use_marks()
    if options is not None:
        recording.promise(options)
        if request.profile != "observe":
            seed_everything(options.seed)
    if inspect.isgeneratorfunction(function):
        _drive(function, options, request, steps)
        _require_matches(options, request, recording)
        return
    result = function(steps.mark) if takes_mark else function()
    if inspect.isgenerator(result):
        _drive(lambda: result, options, request, steps)
        _require_matches(options, request, recording)
        return
    if options is not None:
        raise UntestableError(
            "recipe-yields-nothing", f"{target.text} is a recipe but yields nothing: `yield` its values once per step."
        )
    steps.returned(result)


def _drive(function: Callable[[], Any], options: RecipeOptions | None, request: RunRequest, steps: Steps) -> None:
    """Run a generator, one step per yield."""
    wanted = request.steps or (options.steps if options is not None else None)
    steps.use_yields()
    generator = function()
    try:
        for held in generator:
            steps.yielded(held)
            if steps.num_steps == wanted:
                steps.stop()
                break
    finally:
        generator.close()
    if options is not None and wanted is not None and steps.num_steps < wanted:
        raise UntestableError(
            "too-few-steps",
            f"{request.target} yielded {steps.num_steps} times, not {wanted}: yield once per step, or lower steps=.",
        )
    if steps.num_steps == 0:
        raise UntestableError(
            "recipe-yields-nothing", f"{request.target} yields nothing: `yield` its values once per step."
        )
    steps.returned(None)


def _require_matches(options: RecipeOptions | None, request: RunRequest, recording: Recording) -> None:
    if options is not None and (request.steps is None or request.steps >= options.steps):
        recording.require_matches()


def _run_script(file: Path, proof: Proof) -> None:
    """Run a file as ``__main__``."""
    module = ModuleType("__main__")
    module.__file__ = str(file)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    source = proof.read_script(file)
    linecache.checkcache(str(file))
    exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)


def _exit_status(stop: SystemExit) -> int:
    """The status that the interpreter would have ended with."""
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else 1


def _judge_exit(stop: SystemExit) -> None:
    if _exit_status(stop):
        raise UntestableError(
            "exit-code", f"The target ended itself with exit code {stop.code!r}.", user_traceback(stop)
        ) from stop


def user_traceback(error: BaseException) -> str:
    """The traceback of an error of the target, without frames of ours or of the interpreter's machinery."""
    shown = traceback.TracebackException.from_exception(error)
    _leave_out_ours(shown, set())
    return "".join(shown.format())


def _leave_out_ours(shown: traceback.TracebackException, done: set[int]) -> None:
    if id(shown) in done:
        return
    done.add(id(shown))
    shown.stack[:] = [frame for frame in shown.stack if _belongs(frame.filename)]
    for other in (shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())):
        if other is not None:
            _leave_out_ours(other, done)


def _belongs(filename: str) -> bool:
    return is_user_file(filename) or not (filename.startswith(_OURS) or filename.startswith("<frozen"))


def _shorten(text: str) -> str:
    first = (text.splitlines() or [""])[0]
    return first if len(first) <= 300 else f"{first[:300]}…"
