"""The argument text of a call: exact, free of addresses, with every default written out.

``self=%0, dim=[0, 1], eps=1e-05``: tensor argument n is ``%n``; generators are left out, since the draw is recorded
by state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import xxhash

if TYPE_CHECKING:
    from .schema import OpInfo

_MAX_TEXT: Final = 4000


def argument_text(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor], owners: list[str]
) -> tuple[str, torch.Generator | None]:
    """The text of a call and the generator among its arguments; fills ``tensors`` and the argument that holds each."""
    parts: dict[str, str] = {}
    generator: torch.Generator | None = None
    names = info.positional
    for position, argument in enumerate(args):
        name = names[position] if position < len(names) else f"arg{position}"
        if isinstance(argument, torch.Generator):
            generator = argument
        else:
            parts[name] = _text(argument, name, tensors, owners)
    for name, argument in kwargs.items():
        if isinstance(argument, torch.Generator):
            generator = argument
        else:
            parts[name] = _text(argument, name, tensors, owners)
    for name, default in info.defaults.items():
        if name not in parts and name != "generator":
            parts[name] = default
    if kwargs and info.order:  # as in the schema, whichever way an argument was passed
        parts = {name: parts[name] for name in info.order if name in parts}
    text = ", ".join([f"{name}={text}" for name, text in parts.items()])
    if len(text) > _MAX_TEXT:
        text = f"{text[:_MAX_TEXT]}… #{xxhash.xxh3_128_hexdigest(text.encode('utf-8', 'surrogatepass'))}"
    return text, generator


def _text(argument: Any, name: str, tensors: list[torch.Tensor], owners: list[str]) -> str:
    if isinstance(argument, torch.Tensor):
        tensors.append(argument)
        owners.append(name)
        return f"%{len(tensors) - 1}"
    if argument is None or isinstance(argument, (bool, int, float, complex, str)):
        return repr(argument)
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join([_text(item, name, tensors, owners) for item in argument]) + "]"
    if isinstance(argument, dict):
        return "{" + ", ".join(f"{key!r}: {_text(item, name, tensors, owners)}" for key, item in argument.items()) + "}"
    if isinstance(argument, (torch.dtype, torch.layout, torch.memory_format)):
        return str(argument).removeprefix("torch.")
    if isinstance(argument, torch.device):
        return str(argument)
    if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(argument)
    return type(argument).__name__  # generators in lists, storages, script objects, functions: an address says nothing


def default_text(value: object) -> str:
    """The text of a schema's default, as the same value would read when it is passed."""
    return _text(value, "", [], [])
