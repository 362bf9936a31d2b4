"""Compiled graphs: one event per call, with what goes in and what comes out; inside there are no operators to see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
import xxhash

from ..trace.model import KINDS
from .schema import OpInfo, opaque
from .text import READ, WRITTEN, Arguments

if TYPE_CHECKING:
    from .call import Call
    from .session import Session

_REGION: Final = KINDS.index("region")
_COLLECTIVES: Final = ", collectives=True"
_INSIDE: Final = (
    "Collectives inside compiled graphs are part of their graph's event: which rank sent what another received through "
    "one is told only where it departs by itself."
)


# A graph says which of its inputs it writes.
_FORWARD, _BACKWARD = (
    replace(opaque(f"inductor.{way}", _REGION, ("mutated",)), trusted=True) for way in ("forward", "backward")
)


def compiled_graph(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the call of an inductor graph so that it is recorded as one event."""

    @functools.wraps(original)
    def __call__(graph: Any, inputs: Any) -> Any:
        lane = session.lane
        if session.closed or lane.silent:
            return original(graph, inputs)
        if session.collectives is not None and session.begun:
            session.collectives.used(inputs)
        info = _BACKWARD if torch._C._current_graph_task_id() != -1 else _FORWARD
        call = _begin(session, info, graph, inputs)
        lane.silent += 1
        try:
            result = original(graph, inputs)
        except BaseException:
            if call is not None:
                call.abandon()
            raise
        finally:
            lane.silent -= 1
        if call is not None:
            try:
                call.after(result)
            except Exception as error:
                call.abandon()
                session.defect(info, error)
        return result

    return __call__


def _begin(session: Session, info: OpInfo, graph: Any, inputs: Any) -> Call | None:
    try:
        session.settle()
        mutated = set(getattr(graph, "mutated_input_idxs", ()))
        given = Arguments()
        given.tensors = [held for held in inputs if isinstance(held, torch.Tensor)]
        given.marks = [
            WRITTEN if n in mutated else READ for n, held in enumerate(inputs) if isinstance(held, torch.Tensor)
        ]
        given.text = _text(graph, inputs)
        if given.text.endswith(_COLLECTIVES):
            session.notes.add(_INSIDE)
        call = session.call_type(session, info, given)
        call.before((), {})
        call.release_inputs()
    except Exception as error:
        session.defect(info, error)
        return None
    return call


def _text(graph: Any, inputs: Any) -> str:
    """The graph by its generated source, and its inputs that are no tensors (sizes)."""
    numbers = ["%" if isinstance(held, torch.Tensor) else repr(held) for held in inputs]
    source = str(getattr(graph, "source_code", ""))
    text = f"graph={xxhash.xxh3_64_hexdigest(source.encode())}, inputs=[{', '.join(numbers)}]"
    return text + _COLLECTIVES if "_c10d_functional" in source else text
