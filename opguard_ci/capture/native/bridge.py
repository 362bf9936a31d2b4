"""What the compiled recorder asks of the Python one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..call import Call
from ..fingerprint import cpu
from ..schema import OpInfo
from ..text import Arguments, arguments

if TYPE_CHECKING:
    from ..look import Look, Looks
    from ..session import Session


def text_and_marks(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[int]]:
    """The text of a call, and how it treats its tensors."""
    given = arguments(info, args, kwargs)
    return given.text, given.marks


def defect(session: Session, info: OpInfo, message: str) -> None:
    """The compiled recorder failed on an operator."""
    try:
        raise RuntimeError(message)
    except RuntimeError as error:
        session.defect(info, error)


def queue(looks: Looks, tensors: list[torch.Tensor], op: str) -> list[int]:
    """Begin to fingerprint tensors of a device; values or handles."""
    return looks.values_of(tensors, op)


def hand_over(
    session: Session,
    info: OpInfo,
    given: tuple[str, list[torch.Tensor], list[int]],
    place: tuple[int, int, int, int],
    seen: list[Look],
    links: tuple[Callable[[], tuple[list[Any], ...]], bool],
    drawn: tuple[torch.Generator, int] | None,
    results: list[Any],
) -> None:
    """Finish a call in Python whose first half was recorded by the compiled recorder: an output is strange.

    ``given``: text, tensors and their marks; ``place``: phase, flags, module, stack; ``links``: tells reads, places
    being written and versions, and whether that is only when links are worked out; ``drawn``: the generator of a
    random operator, and its state before.
    """
    arguments_ = Arguments()
    arguments_.text, arguments_.tensors, arguments_.marks = given
    call = Call(session, info, arguments_)
    call.resume(place, [(*look[:3], _again(look[3])) for look in seen], drawn)
    ask, is_late = links
    if is_late:
        with session.lock:
            session.link_late(lambda: call.take_links(*ask()), info)
    else:
        call.take_links(*ask())
    with torch._C.DisableTorchFunction():
        try:
            call.after(tuple(results))
        except Exception:
            call.abandon()
            raise


def _again(look: tuple[int, int, int] | tuple[()] | None) -> Any:
    """How the Python recorder looks at the same bytes again. ``look``: address, size and salt."""
    if not look:
        return look
    address, nbytes, salt = look
    return cpu.buffer(nbytes)(address), salt
