"""Compiled graphs: one event per call, with what goes in and what comes out; inside there are no operators to see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import xxhash

from ..trace.model import KINDS
from .recorder import Call
from .schema import OpInfo
from .session import Session

_REGION: Final = KINDS.index("region")


def _info(name: str) -> OpInfo:
    return OpInfo(
        name=name,
        kind=_REGION,
        order=(),
        positional=(),
        defaults={},
        written=frozenset(("mutated",)),
        overwrites=frozenset(),
        random=False,
        host=False,
        builtin=False,
        skipped=False,
    )


_FORWARD, _BACKWARD = _info("inductor.forward"), _info("inductor.backward")


def compiled_graph(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the call of an inductor graph so that it is recorded as one event."""

    @functools.wraps(original)
    def __call__(graph: Any, inputs: Any) -> Any:
        if not session.active:
            return original(graph, inputs)
        mutated = set(getattr(graph, "mutated_input_idxs", ()))
        given = [(n, held) for n, held in enumerate(inputs) if isinstance(held, torch.Tensor)]
        tensors = [held for _, held in given]
        owners = ["mutated" if n in mutated else "input" for n, _ in given]
        call = Call(session, _BACKWARD if torch._C._current_graph_task_id() != -1 else _FORWARD)
        call.before(_text(graph, inputs), tensors, owners, session.default_generator(tensors, {}))
        call.release_inputs()
        del given, tensors
        session.lane.in_region += 1
        try:
            result = original(graph, inputs)
        finally:
            session.lane.in_region -= 1
        call.after(result)
        return result

    return __call__


def _text(graph: Any, inputs: Any) -> str:
    """The graph by its generated source, and its inputs that are no tensors (sizes)."""
    numbers = ["%" if isinstance(held, torch.Tensor) else repr(held) for held in inputs]
    source = str(getattr(graph, "source_code", ""))
    return f"graph={xxhash.xxh3_64_hexdigest(source.encode())}, inputs=[{', '.join(numbers)}]"
