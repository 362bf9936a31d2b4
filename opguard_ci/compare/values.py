"""Names of operators, descriptions of tensors, and the keys by which calls are told apart. Pure."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from ..trace.model import HIDDEN, NO_VALUE, UNREAD, Event, Write

_EMPTY: Final = re.compile(r"[\[,]0[,\]]")
_SIZES: Final = re.compile(r"\[([\d,]*)\]")
_INTEGERS: Final = ("bool[", "int", "uint")

Key = tuple[object, ...]


@cache
def base_name(op: str) -> str:
    """``aten._foreach_add_.Scalar`` -> ``add``: what an operator computes, whatever its form."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.removeprefix("_foreach_").rstrip("_")


def is_empty(spec: str) -> bool:
    """Whether a tensor of this spec has no element."""
    return _EMPTY.search(spec) is not None


def num_elements(spec: str) -> int:
    """The number of elements of a tensor of this spec."""
    found = _SIZES.search(spec)
    count = 1
    for size in found.group(1).split(",") if found and found.group(1) else ():
        count *= int(size)
    return count


def is_weak_spec(spec: str) -> bool:
    """Whether any value of this spec proves nothing, being tiny or integer."""
    return spec.startswith(_INTEGERS) or num_elements(spec) <= 4


def read_values(event: Event) -> tuple[int, ...]:
    """The values that an operator read; 0 for arguments it only overwrote."""
    return tuple(NO_VALUE if read.flags & UNREAD else read.value for read in event.reads)


def written(event: Event) -> tuple[Write, ...]:
    """What an operator wrote openly."""
    if not any(write.flags & HIDDEN for write in event.writes):
        return event.writes
    return tuple(write for write in event.writes if not write.flags & HIDDEN)


def call_key(event: Event) -> Key:
    """What determines the result of an operator: itself, its arguments, inputs, output shapes and generator state."""
    return (
        event.op,
        event.args,
        read_values(event),
        tuple(read.spec for read in event.reads),
        tuple((write.slot, write.spec) for write in written(event)),
        event.draw.before if event.draw is not None else 0,
    )


def result(event: Event) -> tuple[int, ...]:
    """The values that an operator wrote openly."""
    return tuple(write.value for write in written(event))


def full_key(event: Event) -> Key:
    """A call together with its result: equal keys did the same."""
    return (call_key(event), result(event))


def other_operands(event: Event, other: Event) -> list[int]:
    """The numbers of the operands that have another value or shape."""
    pairs = enumerate(zip(event.reads, other.reads, strict=False))
    return [
        number
        for number, (mine, others) in pairs
        if (mine.value, mine.spec) != (others.value, others.spec) and not mine.flags & UNREAD
    ]
