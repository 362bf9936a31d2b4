"""The dispatch mode that sees every operator of a thread and hands each call to the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from .text import arguments

if TYPE_CHECKING:
    from .call import Call
    from .session import Session

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_EMPTY: Final[dict[str, Any]] = {}

_num_function_modes = torch._C._len_torch_function_stack


class Recorder(TorchDispatchMode):
    """Records the operators of the thread that entered it. One instance per thread."""

    supports_higher_order_operators = True

    def __init__(self, session: Session) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.session = session

    def __enter__(self) -> Recorder:
        super().__enter__()  # type: ignore[no-untyped-call]
        if self.session.core is not None:
            self.session.core.enter(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self.session.core is not None:
            self.session.core.leave(self)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep torch.compile on: a mode that does not say so switches it off."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave out the wrapper that keeps dynamo from compiling us, at every call: see below the class."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record one call, unless the compiled recorder did. Never changes its arguments, results or errors."""
        kwargs = kwargs or _EMPTY
        session = self.session
        lane = session.lane
        if session.closed or lane.silent:  # of wrapper subclasses, too: the mode below us may be theirs
            session.passed_by()
            return func(*args, **kwargs)
        for kind in types:
            if kind not in _PLAIN and _dispatches(kind):
                if issubclass(kind, FakeTensor):  # nothing is computed
                    return func(*args, **kwargs)
                return NotImplemented  # a wrapper subclass: its inner operators will come by
        info = session.infos.get(func) or session.describe(func)
        if info.skipped:
            return func(*args, **kwargs)
        if session.begun or info.collective:
            collectives = session.collectives
            assert collectives is not None
            collectives.before(info, (*args, *kwargs.values()))
            if info.collective:
                return collectives.call(func, info, args, kwargs)
        call: Call | None = None
        try:
            given = arguments(info, args, kwargs)
            call = session.call_type(session, info, given)
            if given.plain and not _num_function_modes():
                call.before(args, kwargs)
            else:  # what we ask of tensors is not for the user's functions to see
                with torch._C.DisableTorchFunction():
                    call.before(args, kwargs)
        except Exception as error:
            session.defect(info, error)
            call = None
        try:
            result = func(*args, **kwargs)
        except BaseException:
            if call is not None:
                call.abandon()
            raise
        if call is not None:
            try:
                if given.plain and not _num_function_modes():
                    call.after(result)
                else:
                    with torch._C.DisableTorchFunction():
                        call.after(result)
            except Exception as error:
                call.abandon()
                session.defect(info, error)
        return result


# Dynamo neither compiles this frame nor what it calls; costs nothing per call.
set_code_exec_strategy(Recorder.__torch_dispatch__.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def _dispatches(kind: type) -> bool:
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not torch.Tensor.__torch_dispatch__ and own is not torch._C._disabled_torch_dispatch_impl
