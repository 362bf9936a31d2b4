"""The argument text of a call: exact, free of addresses, with every default written out.

``self=%0, dim=[0, 1], eps=1e-05``: tensor argument n is ``%n``; generators are left out, since the draw is recorded
by state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, NoneType
from typing import TYPE_CHECKING, Any, Final

import torch
import xxhash

if TYPE_CHECKING:
    from .schema import OpInfo

_MAX_TEXT: Final = 4000
_MAX_DEPTH: Final = 3

# How a call treats a tensor argument.
READ, WRITTEN, OVERWRITTEN, SCRATCH = range(4)

_NUMBERS: Final = tuple(f"%{number}" for number in range(64))


@dataclass(frozen=True, slots=True)
class Template:
    """The text of calls that pass the same arguments, whatever their values."""

    marks: tuple[int, ...]
    """How the call treats each argument that is passed, in the order of the call."""
    text: str
    """With a place for each argument."""
    order: tuple[int, ...] | None
    """Which arguments the text shows, where that is not all of them in the order of the call."""


class Arguments:
    """What was passed in one call."""

    __slots__ = ("generator", "marks", "plain", "tensors", "text")

    def __init__(self) -> None:
        self.text = ""
        self.tensors: list[torch.Tensor] = []
        self.marks: list[int] = []  # how the call treats each tensor
        self.generator: torch.Generator | None = None
        self.plain = True  # no tensor is of a subclass


def arguments(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Take the arguments of a call apart."""
    key = (len(args), *kwargs) if kwargs else len(args)
    template = info.templates.get(key)
    if template is None:
        template = info.templates[key] = _template(info, len(args), tuple(kwargs))
    found = Arguments()
    tensors, marks = found.tensors, found.marks
    texts: list[str] = []
    for argument, mark in zip((*args, *kwargs.values()) if kwargs else args, template.marks, strict=True):
        kind = type(argument)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            number = len(tensors)
            tensors.append(argument)
            marks.append(mark)
            texts.append(_NUMBERS[number] if number < 64 else f"%{number}")
            continue
        write = _WRITERS.get(kind)
        texts.append(write(argument) if write is not None else _text(argument, mark, found))
    if template.order is not None:
        texts = [texts[position] for position in template.order]
    text = template.text % tuple(texts)
    if len(text) > _MAX_TEXT:
        text = f"{text[:_MAX_TEXT]}… #{xxhash.xxh3_128_hexdigest(text.encode('utf-8', 'surrogatepass'))}"
    found.text = text
    return found


def _template(info: OpInfo, num_positional: int, keywords: tuple[str, ...]) -> Template:
    names = [*info.positional[:num_positional]]
    names += [f"arg{position}" for position in range(len(names), num_positional)]
    names += keywords
    marks = tuple(_mark(info, name) for name in names)
    pieces = {name: f"{_escaped(name)}=%s" for name in names}
    for name, default in info.defaults.items():
        pieces.setdefault(name, f"{_escaped(name)}={_escaped(default)}")
    places = [name for name in info.order if name in pieces] + [name for name in pieces if name not in info.order]
    places = [name for name in places if name not in info.generators]
    shown = tuple(names.index(name) for name in places if name in names)
    return Template(
        marks, ", ".join(pieces[name] for name in places), None if shown == tuple(range(len(names))) else shown
    )


def _mark(info: OpInfo, name: str) -> int:
    if name in info.written:
        return OVERWRITTEN if name in info.overwrites else WRITTEN
    return SCRATCH if name in info.scratch else READ


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _text(argument: Any, mark: int, into: Arguments) -> str:
    write = _WRITERS.get(type(argument))
    if write is not None:
        return write(argument)
    if isinstance(argument, torch.Tensor):
        into.plain = into.plain and type(argument) in (torch.Tensor, torch.nn.Parameter)
        into.tensors.append(argument)
        into.marks.append(mark)
        return f"%{len(into.tensors) - 1}"
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join([_text(item, mark, into) for item in argument]) + "]"
    if isinstance(argument, dict):
        return "{" + ", ".join(f"{key!r}: {_text(item, mark, into)}" for key, item in argument.items()) + "}"
    if isinstance(argument, torch.Generator):
        into.generator = argument
        return "generator"
    if isinstance(argument, (bool, int, float, complex, str)):
        return repr(argument)
    if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(argument)
    if isinstance(argument, torch.fx.GraphModule):  # a branch of a higher-order operator
        return f"graph {_digest(argument.code)}"
    if isinstance(argument, FunctionType):
        return f"function {_digest(repr(_content(argument, 0)))}"
    return type(argument).__name__  # storages, script objects: an address says nothing


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def _content(held: Any, depth: int) -> Any:
    """What a function computes, as far as can be told: its code, and the numbers and functions that it refers to."""
    if isinstance(held, FunctionType) and depth < _MAX_DEPTH:
        code = held.__code__
        cells = [cell.cell_contents for cell in held.__closure__ or () if _is_full(cell)]
        named = [held.__globals__.get(name) for name in code.co_names]
        return [_content(item, depth + 1) for item in (code, held.__defaults__, held.__kwdefaults__, cells, named)]
    if isinstance(held, CodeType):
        return [held.co_code.hex(), [_content(item, depth) for item in held.co_consts]]
    if isinstance(held, (list, tuple)):
        return [_content(item, depth) for item in held]
    return held if isinstance(held, (bool, int, float, complex, str, bytes, NoneType)) else type(held).__name__


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _short(argument: object) -> str:
    return str(argument).removeprefix("torch.")


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): repr,
    bool: repr,
    int: repr,
    float: repr,
    complex: repr,
    str: repr,
    torch.dtype: _short,
    torch.layout: _short,
    torch.memory_format: _short,
    torch.device: str,
}


def default_text(value: object) -> str:
    """The text of a schema's default, as the same value would read when it is passed."""
    return _text(value, READ, Arguments())
