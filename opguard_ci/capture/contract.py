"""The contract of a run: the named values that it promises per step, from what it yields or from what it was seen
to train.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

_MAX_DEPTH: Final = 20
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)

Held = torch.Tensor | int | float | complex | bool | str | bytes | None


class Entry(NamedTuple):
    """One value of the contract."""

    section: str  # loss, parameter, buffer, optimizer, gradient, rng, value, final
    name: str
    held: Held
    key: str | None = None  # place by (optimizer, group, index), to pair what was renamed

    def of(self, held: Held) -> Entry:
        """The same place with something else in it. Not ``_replace``: dynamo would look at the library's code."""
        return Entry(self.section, self.name, held, self.key)


def flatten(name: str, held: Any, section: str = "value") -> Iterator[Entry]:
    """The entries below one yielded or returned object (DESIGN 4): modules, optimizers, scalers, schedulers,
    containers.
    """
    yield from _flatten(name, held, section, 0, _names_of(held))


def flatten_step(yielded: Any) -> Iterator[Entry]:
    """The entries of what a recipe yields for one step; a mapping of names is usual, anything else is called
    ``value``.
    """
    if not isinstance(yielded, Mapping):
        yield from flatten("value", yielded)
        return
    names: dict[int, str] = {}
    for key, held in yielded.items():
        if isinstance(held, torch.nn.Module):
            names.update((id(p), f"{key}.{name}") for name, p in held.named_parameters())
    for key, held in yielded.items():
        section = "loss" if str(key) == "loss" or str(key).endswith("_loss") else "value"
        yield from _flatten(str(key), held, section, 0, names)


def unwrapped(held: Held) -> Held:
    """What a tensor subclass wraps, if that is one tensor: of a DTensor this rank's part, as operators see it."""
    if type(held) in _PLAIN or not isinstance(held, torch.Tensor):
        return held
    inside = getattr(held, "__tensor_flatten__", None)
    if inside is None:
        return held
    if hasattr(held, "trigger_wait"):  # a collective's result, which nobody has asked for yet
        held.trigger_wait()
    parts = [part for part in (getattr(held, name) for name in inside()[0]) if isinstance(part, torch.Tensor)]
    return unwrapped(parts[0]) if len(parts) == 1 else held


def _names_of(held: Any) -> dict[int, str]:
    return {id(p): name for name, p in held.named_parameters()} if isinstance(held, torch.nn.Module) else {}


def _flatten(name: str, held: Any, section: str, depth: int, names: dict[int, str]) -> Iterator[Entry]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(held, (torch.Tensor, int, float, complex, str, bytes)) or held is None:
        yield Entry(section, name, held)
    elif isinstance(held, torch.nn.Module):
        for key, parameter in held.named_parameters():
            yield Entry("parameter", f"{name}.{key}", parameter)
            if parameter.grad is not None:
                yield Entry("gradient", f"grad.{name}.{key}", parameter.grad)
        for key, buffer in held.named_buffers():
            yield Entry("buffer", f"{name}.{key}", buffer)
    elif isinstance(held, torch.optim.Optimizer):
        yield from optimizer_state(name, held, names)
    elif isinstance(held, torch.Generator):
        yield Entry("rng", name, held.get_state())
    elif isinstance(held, Mapping):
        for key, item in held.items():
            yield from _flatten(f"{name}.{key}", item, section, depth + 1, names)
    elif isinstance(held, (list, tuple, set, frozenset)):
        ordered = sorted(held, key=repr) if isinstance(held, (set, frozenset)) else held
        for index, item in enumerate(ordered):
            yield from _flatten(f"{name}.{index}", item, section, depth + 1, names)
    elif hasattr(held, "_asdict"):
        yield from _flatten(name, held._asdict(), section, depth + 1, names)
    elif hasattr(held, "__dataclass_fields__"):
        fields = {key: getattr(held, key) for key in held.__dataclass_fields__}
        yield from _flatten(name, fields, section, depth + 1, names)
    elif callable(getattr(held, "state_dict", None)):  # GradScaler, schedulers, stateful loaders
        yield from _flatten(name, held.state_dict(), section, depth + 1, names)
    elif hasattr(held, "__array__"):
        yield Entry(section, name, _from_array(held.__array__()))
    else:
        yield Entry(section, name, f"<{type(held).__qualname__}>")


def _from_array(array: Any) -> Held:
    try:
        return torch.as_tensor(array)
    except TypeError:  # text, dates, objects
        return f"{array.dtype} {array.tolist()!r}" if array.dtype.kind in "USMm" else f"<array of {array.dtype}>"


def optimizer_state(
    prefix: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str], key: str = ""
) -> Iterator[Entry]:
    """The state of an optimizer, by what it holds and for which parameter."""
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            place = f"{group_index}.{index}"
            for what, held in optimizer.state.get(parameter, {}).items():
                if isinstance(held, (torch.Tensor, int, float)):
                    name = f"{prefix}.{what}.{names.get(id(parameter), place)}"
                    yield Entry("optimizer", name, held, f"{key or prefix}.{what}.{place}")


def generator_states() -> Iterator[Entry]:
    """The states of torch's default generators. Never initialises CUDA."""
    yield Entry("rng", "cpu", torch.default_generator.get_state())
    if torch.cuda.is_initialized():
        for index, generator in enumerate(torch.cuda.default_generators):
            yield Entry("rng", f"cuda:{index}", generator.get_state())


class Training:
    """What a plain function or script was seen to train: optimizers that stepped, modules they belong to, losses."""

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._modules: dict[int, weakref.ref[torch.nn.Module]] = {}

    def saw_module(self, module: torch.nn.Module) -> None:
        """A module was called from outside of any other."""
        known = self._modules.get(id(module))
        if known is None or known() is None:
            self._modules[id(module)] = weakref.ref(module)

    def saw_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer stepped."""
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers seen that are still alive."""
        return [found for found in (known() for known in self._optimizers) if found is not None]

    def entries(self) -> Iterator[Entry]:
        """Parameters, buffers and optimizer state, as they are now."""
        optimizers = self.optimizers()
        places: dict[int, str] = {}
        owned: dict[int, torch.Tensor] = {}
        for number, optimizer in enumerate(optimizers):
            for group_index, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    places.setdefault(id(parameter), f"{number}.{group_index}.{index}")
                    owned.setdefault(id(parameter), parameter)
        names: dict[int, str] = {}
        buffers: list[tuple[str, torch.Tensor]] = []
        for number, module in enumerate(self._trained(owned)):
            prefix = "model" if number == 0 else f"model.{number}"
            for name, parameter in module.named_parameters():
                if id(parameter) not in names:
                    names[id(parameter)] = f"{prefix}.{name}"
                    owned.setdefault(id(parameter), parameter)
            buffers += [(f"{prefix}.{name}", buffer) for name, buffer in module.named_buffers()]
        for number, parameter in owned.items():
            name = names.get(number) or f"parameter.{places[number]}"
            yield Entry("parameter", name, parameter, places.get(number))
        for name, buffer in buffers:
            yield Entry("buffer", name, buffer)
        for number, optimizer in enumerate(optimizers):
            prefix = "optimizer" if number == 0 else f"optimizer.{number}"
            yield from optimizer_state(prefix, optimizer, names, str(number))

    def _trained(self, owned: dict[int, torch.Tensor]) -> Iterator[torch.nn.Module]:
        """Modules with a parameter that an optimizer owns or that received a gradient: not a teacher, not an
        average.
        """
        seen: set[int] = set()
        alive = [module for module in (known() for known in self._modules.values()) if module is not None]
        parts = {id(part) for module in alive for part in module.modules() if part is not module}
        for module in alive:
            if id(module) in parts:  # called on its own, but a part of another that was called
                continue
            mine = list(module.parameters())
            if any(id(p) in owned or p.grad is not None for p in mine) and not all(id(p) in seen for p in mine):
                seen.update(id(p) for p in mine)
                yield module

    def gradients(self, optimizer: torch.optim.Optimizer) -> Iterator[Entry]:
        """The gradients that an optimizer is about to use."""
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    yield Entry("gradient", f"grad.{group_index}.{index}", parameter.grad, f"{group_index}.{index}")
