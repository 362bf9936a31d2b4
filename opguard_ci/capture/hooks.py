"""The places in a running torch where capture listens: modules, optimizers, backward, loaders, threads, the compiler.

Everything is put in at the start of a run and taken out at its end; no file is touched.
"""

from __future__ import annotations

import _thread
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Final

import torch
from torch._C._autograd import SavedTensor
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from ..trace.model import NULL
from .compiled import compiled_graph
from .recompiled import count_compilations
from .recorder import Recorder
from .session import Session
from .steps import Steps
from .uncompiled import keep_dynamo_out, must_be_whole

_ANY_HOOK: Final = "_has_any_global_hook"
_StepHook = Callable[[torch.optim.Optimizer, Any, Any], None]
_running: weakref.WeakSet[Session] = weakref.WeakSet()


def _stop_in_forked_child() -> None:
    """Loader workers inherit the mode: what they run is recorded as the data they hand over, not as operators."""
    for session in _running:
        session.enter_forked_child()


os.register_at_fork(after_in_child=_stop_in_forked_child)


@contextmanager
def listening(session: Session, steps: Steps, *, operators: bool) -> Iterator[None]:
    """Listen to this process while the run lasts. ``operators``: record operators too, not just the contract."""
    _running.add(session)
    with ExitStack() as stack:
        stack.callback(_running.discard, session)
        _listen_to_modules(stack, session, steps)
        _listen_to_optimizers(stack, session, steps)
        _patch(stack, torch.autograd, "backward", functools.partial(_backward, steps))
        _patch(stack, torch.autograd, "_engine_run_backward", functools.partial(_engine, session))
        _patch(stack, SavedTensor, "register_hooks", functools.partial(_register_hooks, session))
        _patch(stack, _BaseDataLoaderIter, "__next__", functools.partial(_next_batch, session))
        _patch(stack, torch.amp.GradScaler, "_maybe_opt_step", functools.partial(_scaler_step, steps))
        if operators:
            lanes: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
            _patch(stack, threading.Thread, "start", functools.partial(_start_thread, session, lanes))
            _patch(stack, threading.Thread, "_bootstrap_inner", functools.partial(_thread_bootstrap, session, lanes))
            _patch(stack, _thread, "start_new_thread", functools.partial(_start_new_thread, session))
            _patch(stack, _MultiProcessingDataLoaderIter, "__init__", functools.partial(_make_workers, session))
            _patch(stack, BaseProcess, "start", functools.partial(_start_process, session))
            _patch(stack, torch.cuda.CUDAGraph, "replay", functools.partial(_replay_graph, session))
            _listen_to_compiler(stack, session)
            _listen_to_collectives(stack, session)
        keep_dynamo_out()
        if operators:
            stack.enter_context(Recorder(session))
        yield


def _patch(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute until the run ends."""
    original = getattr(owner, name)
    replacement = make(original)
    setattr(owner, name, replacement)
    stack.callback(setattr, owner, name, original)


def _listen_to_modules(stack: ExitStack, session: Session, steps: Steps) -> None:
    modules = session.modules

    def enter(module: torch.nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not modules.calls:
            steps.saw_module(module)
        modules.enter(module)

    def leave(module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if not torch.compiler.is_compiling():
            modules.leave(module)

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    for hook in hooks:
        stack.callback(hook.remove)
    if hasattr(torch_module, _ANY_HOOK):
        _patch(
            stack, torch_module, _ANY_HOOK, lambda _: functools.partial(_has_other_hooks, {hook.id for hook in hooks})
        )


def _has_other_hooks(ours: set[int]) -> bool:
    """What compiled modules ask before they warn of global hooks: whether the program has any."""
    return any(
        held.keys() - ours
        for name, held in vars(torch_module).items()
        if name.startswith("_global_") and "_hooks" in name and isinstance(held, dict)
    )


def _listen_to_optimizers(stack: ExitStack, session: Session, steps: Steps) -> None:
    lane = session.lane

    def before(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            if must_be_whole():
                return
            torch._dynamo.graph_break()  # else dynamo warns of what it cannot trace
        frame = sys._getframe(1)
        lane.optimizing = (*lane.optimizing, (id(frame), frame.f_code))
        steps.before_optimizer(optimizer)

    def after(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # as a whole, without ``before``
            return
        lane.optimizing = lane.optimizing[:-1]
        steps.after_optimizer(optimizer)

    stack.callback(register_optimizer_step_pre_hook(before).remove)
    stack.callback(register_optimizer_step_post_hook(after).remove)
    from torch._dynamo.eval_frame import _TorchDynamoContext

    # Not torch.compile itself, which dynamo knows by its identity.
    _patch(stack, _TorchDynamoContext, "__call__", functools.partial(_compile, before, after))


def _compile(before: _StepHook, after: _StepHook, original: Callable[..., Any]) -> Callable[..., Any]:
    """Hooks are no part of a step that is compiled as a whole; they run around it."""

    @functools.wraps(original)
    def compile(context: Any, function: Any) -> Any:
        compiled = original(context, function)
        optimizer = getattr(function, "__self__", None)
        if not isinstance(optimizer, torch.optim.Optimizer) or function != optimizer.step:
            return compiled
        if not getattr(context, "fullgraph", False):
            return compiled

        @functools.wraps(compiled)
        def step(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return compiled(*args, **kwargs)
            before(optimizer, args, kwargs)
            result = compiled(*args, **kwargs)
            after(optimizer, args, kwargs)
            return result

        return step

    return compile


def _listen_to_compiler(stack: ExitStack, session: Session) -> None:
    from torch._dynamo.callback import CompilationCallbackHandler
    from torch._inductor.output_code import CompiledFxGraph

    # Not by registering callbacks: torch._dynamo.reset() forgets those.
    _patch(stack, CompilationCallbackHandler, "install_callbacks", functools.partial(_compiling, session))
    _patch(stack, CompiledFxGraph, "__call__", functools.partial(compiled_graph, session))
    count_compilations(stack, session.notes.add, session.stacks.shown)


def _listen_to_collectives(stack: ExitStack, session: Session) -> None:
    if torch.distributed.is_available():
        from .collectives import listen_to_work

        listen_to_work(stack, session)


def _compiling(
    session: Session, original: Callable[..., AbstractContextManager[None]]
) -> Callable[..., AbstractContextManager[None]]:
    @functools.wraps(original)
    @contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        lane = session.lane
        lane.silent += 1
        try:
            with original(*args, **kwargs):
                yield
        finally:
            lane.silent -= 1

    return install_callbacks


def _backward(steps: Steps, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        steps.saw_backward([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
        original(tensors, *args, **kwargs)

    return backward


def _engine(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """What both ``backward`` and ``grad`` call; the fourth argument says whether a graph of the gradients is made."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        makes_graph = args[3] if len(args) > 3 else kwargs.get("create_graph")
        outer, session.create_graph = session.create_graph, bool(makes_graph)
        try:
            return original(*args, **kwargs)
        finally:
            session.create_graph = outer

    return run


def _register_hooks(session: Session, original: Callable[..., None]) -> Callable[..., None]:
    """Where what a node saved is unpacked by a hook, the program runs in the middle of a backward pass."""

    def register_hooks(saved: Any, *hooks: Any, **named: Any) -> None:
        if session.core is not None:
            session.core.saves_by_hooks()
        original(saved, *hooks, **named)

    return register_hooks


def _next_batch(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __next__(loader: Any) -> Any:
        session.lane.loading += 1
        try:
            return original(loader)
        finally:
            session.lane.loading -= 1

    return __next__


def _make_workers(session: Session, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
        session.lane.making_workers += 1
        try:
            original(loader, *args, **kwargs)
        finally:
            session.lane.making_workers -= 1

    return __init__


def _start_process(session: Session, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(process: BaseProcess) -> None:
        original(process)
        if not session.lane.making_workers and getattr(process, "_start_method", None) in ("spawn", "forkserver"):
            session.unseen.add(f"processes started by {process._start_method}")  # type: ignore[attr-defined]

    return start


def _replay_graph(session: Session, original: Callable[..., None]) -> Callable[..., None]:
    """A recorded CUDA graph runs its kernels without a call of any operator."""

    @functools.wraps(original)
    def replay(graph: Any) -> None:
        if not session.closed:
            session.unseen.add("operators in a CUDA graph that was replayed (CUDAGraph.replay)")
        original(graph)

    return replay


def _scaler_step(steps: Steps, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _maybe_opt_step(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = steps.num_optimizer_steps
        result = original(scaler, optimizer, *args, **kwargs)
        if steps.num_optimizer_steps == before:  # skipped because of inf or NaN: it counts as a step
            steps.after_optimizer(optimizer)
        return result

    return _maybe_opt_step


def _start_thread(
    session: Session, lanes: weakref.WeakKeyDictionary[threading.Thread, int], original: Callable[..., None]
) -> Callable[..., None]:
    """Number threads as they are started, which repeats itself where the order of their first operators does not."""

    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        session.lane_number()
        lanes[thread] = session.new_lane()
        original(thread)

    return start


def _thread_bootstrap(
    session: Session, lanes: weakref.WeakKeyDictionary[threading.Thread, int], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def _bootstrap_inner(thread: threading.Thread) -> Any:
        if session.over:
            return original(thread)
        session.lane.number = lanes.get(thread, NULL)
        with Recorder(session):
            return original(thread)

    return _bootstrap_inner


def _start_new_thread(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """Threads that are started without the threading module."""

    @functools.wraps(original)
    def start_new_thread(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> int:
        session.lane_number()
        number = session.new_lane()

        def run(*a: Any, **k: Any) -> None:
            session.lane.number = number
            with Recorder(session):
                function(*a, **k)

        return int(original(run, args, kwargs or {}))

    return start_new_thread
