"""Keeps dynamo away from our own code.

Within a call of compiled code dynamo looks at every Python frame that it did not inline: behind a graph break, or below
a function that it leaves out. A hook of ours that runs there is no part of the program, and would be compiled as one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Final

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

_PACKAGE: Final = "opguard_ci."
_PROGRAMS: Final = "opguard_ci.recipes"
"""What is run, and not what runs it."""
_SKIPPED: Final = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
"""The frame is left alone; what it calls may be the program's, and is treated as ever."""

_done: set[str] = set()


def keep_dynamo_out() -> None:
    """Have dynamo leave out all code of this package that has been imported, once. Costs nothing per call."""
    torch.compiler.assume_constant_result(must_be_whole)
    ours = [name for name in list(sys.modules) if name.startswith(_PACKAGE) and not name.startswith(_PROGRAMS)]
    for name in set(ours) - _done:
        _done.add(name)
        for code in codes(sys.modules[name]):
            set_code_exec_strategy(code, _SKIPPED)


def must_be_whole() -> bool:
    """Whether dynamo, which is tracing the caller, may not break the graph (``fullgraph=True``)."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracing = InstructionTranslator.current_tx()
    return bool(tracing.one_graph or getattr(tracing, "error_on_graph_break", False))


def codes(module: ModuleType) -> Iterator[CodeType]:
    """The code of all functions and methods that a module defines, and of what is defined within them."""
    queue = list(vars(module).values())
    while queue:
        held = queue.pop()
        if inspect.isclass(held):
            if held.__module__ == module.__name__:
                queue += vars(held).values()
            continue
        for attribute in ("__func__", "fget", "func"):  # of static methods, properties, cached properties
            held = getattr(held, attribute, held)
        held = inspect.unwrap(held) if callable(held) else held
        if inspect.isfunction(held) and held.__module__ == module.__name__:
            yield from _nested(held.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
