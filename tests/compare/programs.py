"""Random small trainings as data: real torch operators on tensors of one shape, interpreted under capture.

A program is a list of nodes; each runs as a module of its own, so that an event's module says which node it is. All
full-sized tensors are ``[ROWS, COLUMNS]``, so that any node may read any earlier one.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

ROWS, COLUMNS = 6, 8
INPUT = 0
"""The number under which nodes read the batch."""

Apply = Callable[["NodeModule", list[torch.Tensor], dict[str, Any]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Node:
    """One computation. ``inputs`` are numbers of earlier nodes; ``helper``: it runs inside a further module."""

    number: int
    op: str
    inputs: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    helper: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A training: nodes in the order of execution, the two whose values make the loss, and an optimizer."""

    seed: int
    nodes: tuple[Node, ...]
    heads: tuple[int, int]
    optimizer: str
    lr: float
    steps: int = 2
    foreach: bool = False
    prefix: str = "n"
    """Of the names of the nodes' modules."""
    from_numpy: bool = False
    """Batches come from outside of torch."""

    def node(self, number: int) -> Node:
        """The node with a number."""
        return next(node for node in self.nodes if node.number == number)

    def with_node(self, changed: Node) -> Program:
        """The program with one node exchanged."""
        return replace(self, nodes=tuple(changed if n.number == changed.number else n for n in self.nodes))


@dataclass(frozen=True, slots=True)
class Kind:
    """What a node of some name does, what it can be set to, and what it keeps."""

    apply: Apply
    inputs: int = 1
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    skippable: bool = False
    """Has an in-place operator that ``skip=True`` leaves out."""


class NodeModule(torch.nn.Module):
    """A node with its parameters."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node
        kind = KINDS[node.op]
        for position, (name, shape) in enumerate(kind.parameters.items()):
            generator = torch.Generator().manual_seed(node.number * 7 + position)
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.4))
        for name, shape in kind.buffers.items():
            self.register_buffer(name, torch.zeros(shape) if name != "running_var" else torch.ones(shape))

    def forward(self, *inputs: torch.Tensor, **settings: Any) -> torch.Tensor:
        return KINDS[settings.pop("op", self.node.op)].apply(self, list(inputs), settings)


class Helper(torch.nn.Module):
    """A module that only passes on to another."""

    def __init__(self, node: Node, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, NodeModule(node))

    def forward(self, *inputs: torch.Tensor, **settings: Any) -> Any:
        return self.get_submodule(self.name)(*inputs, **settings)


def memory_of(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    """The floats of a dense tensor, as memory that no operator guards."""
    count = tensor.numel()
    return np.frombuffer((ctypes.c_float * count).from_address(tensor.data_ptr()), np.float32)


def _lerp_into_buffer(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    if not s.get("skip"):
        with torch.no_grad():
            m.average.lerp_(t[0].detach(), s["weight"])
    return t[0] + m.average * 0.5


def _copy_into_buffer(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    old = m.last.clone()
    if not s.get("skip"):
        with torch.no_grad():
            m.last.copy_(t[0].detach())
    return t[0] * torch.tanh(old + 1.0)


def _slices(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    rows = s["rows"]
    whole = torch.zeros_like(t[0]) if s["zeros"] else torch.empty_like(t[0])
    whole[:rows].copy_(t[0][:rows])
    if not s.get("skip"):
        whole[rows:].copy_(t[1][rows:])
    return whole


def _in_place(name: str) -> Apply:
    def apply(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
        out = t[0].clone()
        if s.get("skip"):
            return out
        rest = {key: held for key, held in s.items() if key != "skip"}
        return getattr(out, name)(t[1], **rest)

    return apply


def _index_put(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    out = t[0].clone()
    if not s.get("skip"):
        rows = torch.tensor(s["rows"])
        out[rows] = t[1][rows] * 0.5
    return out


def _foreach(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        halves = [t[0].detach().clone(), t[1].detach().clone()]
        if s["loop"]:
            for half in halves:
                half.mul_(s["factor"])
        else:
            torch._foreach_mul_(halves, s["factor"])
    return t[0] + halves[0] - halves[1]


def _attention(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    scores = torch.softmax(t[0] @ t[1].t() * s["scale"], dim=-1)
    return scores @ t[1]


def _item(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    scale = t[0].detach().abs().mean().item()
    return t[1] * (scale * s["factor"])


def _batch_norm(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    return F.batch_norm(
        t[0], m.running_mean, m.running_var, m.weight, m.bias, training=True, momentum=s["momentum"], eps=s["eps"]
    )


def _custom(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    """An operator of the program's own; with ``hidden`` it changes an argument that its schema calls read-only."""
    _misbehaving.append(bool(s.get("hidden")))
    try:
        return t[0] * torch.ops.opguard_tests.blend(t[0].detach(), t[1].detach())
    finally:
        _misbehaving.pop()


_misbehaving: list[bool] = []
_library = torch.library.Library("opguard_tests", "DEF")
_library.define("blend(Tensor x, Tensor y) -> Tensor")


def _blend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = x * 0.5 + y * 0.25
    if _misbehaving[-1]:
        y += 0.125
    return out


_library.impl("blend", _blend, "CPU")


def _embedding(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    return F.embedding(t[0].detach().argmax(dim=s["dim"])[:ROWS], m.weight) + t[1]


def _scatter(m: NodeModule, t: list[torch.Tensor], s: dict[str, Any]) -> torch.Tensor:
    index = torch.arange(ROWS).flip(0)[:, None].expand(ROWS, COLUMNS)
    return torch.zeros_like(t[0]).scatter_add(0, index, t[0]) * s["factor"]


KINDS: dict[str, Kind] = {
    "add": Kind(lambda m, t, s: torch.add(t[0], t[1], alpha=s["alpha"]), 2, {"alpha": (1, 0.5, 0.75)}),
    "sub": Kind(lambda m, t, s: torch.sub(t[0], t[1], alpha=s["alpha"]), 2, {"alpha": (1, 0.5, 0.25)}),
    "mul": Kind(lambda m, t, s: t[0] * t[1], 2),
    "div": Kind(lambda m, t, s: t[0] / (t[1].abs() + s["shift"]), 2, {"shift": (1.0, 1.5)}),
    "tanh": Kind(lambda m, t, s: torch.tanh(t[0])),
    "relu": Kind(lambda m, t, s: torch.relu(t[0])),
    "gelu": Kind(lambda m, t, s: F.gelu(t[0], approximate=s["approximate"]), 1, {"approximate": ("none", "tanh")}),
    "clamp": Kind(lambda m, t, s: t[0].clamp(-s["limit"], s["limit"]), 1, {"limit": (0.5, 0.75, 1.5)}),
    "softmax": Kind(lambda m, t, s: torch.softmax(t[0], dim=s["dim"]), 1, {"dim": (0, 1)}),
    "cumsum": Kind(lambda m, t, s: torch.cumsum(t[0], dim=s["dim"]), 1, {"dim": (0, 1)}),
    "layer_norm": Kind(
        lambda m, t, s: F.layer_norm(t[0], (COLUMNS,), m.weight, m.bias, s["eps"]),
        1,
        {"eps": (1e-5, 1e-6, 1e-3)},
        {"weight": (COLUMNS,), "bias": (COLUMNS,)},
    ),
    "batch_norm": Kind(
        _batch_norm,
        1,
        {"eps": (1e-5, 1e-3), "momentum": (0.1, 0.2)},
        {"weight": (COLUMNS,), "bias": (COLUMNS,)},
        {"running_mean": (COLUMNS,), "running_var": (COLUMNS,)},
    ),
    "mm": Kind(lambda m, t, s: t[0] @ m.weight, 1, {}, {"weight": (COLUMNS, COLUMNS)}),
    "linear": Kind(
        lambda m, t, s: F.linear(t[0], m.weight, m.bias), 1, {}, {"weight": (COLUMNS, COLUMNS), "bias": (COLUMNS,)}
    ),
    "attention": Kind(_attention, 2, {"scale": (0.25, 0.35)}),
    "cat": Kind(lambda m, t, s: torch.cat([t[0], t[1]], dim=1) @ m.weight, 2, {}, {"weight": (2 * COLUMNS, COLUMNS)}),
    "center": Kind(lambda m, t, s: t[0] - t[0].mean(dim=s["dim"], keepdim=True), 1, {"dim": (0, 1)}),
    "scale_by_sum": Kind(lambda m, t, s: t[0] * torch.tanh(t[1].sum()), 2),
    "where": Kind(lambda m, t, s: torch.where(t[0] > s["above"], t[0], t[1]), 2, {"above": (0.0, 0.1, -0.2)}),
    "masked_fill": Kind(lambda m, t, s: t[0].masked_fill(t[1] < s["below"], 0.1), 2, {"below": (0.0, 0.2)}),
    "embedding": Kind(_embedding, 2, {"dim": (0, 1)}, {"weight": (COLUMNS, COLUMNS)}),
    "dropout": Kind(lambda m, t, s: F.dropout(t[0], s["p"]), 1, {"p": (0.1, 0.3)}),
    "noise": Kind(lambda m, t, s: t[0] + torch.randn(ROWS, COLUMNS) * s["size"], 1, {"size": (0.1, 0.2)}),
    "rand": Kind(lambda m, t, s: t[0] * torch.rand(ROWS, COLUMNS)),
    "add_": Kind(_in_place("add_"), 2, {"alpha": (1, 0.5)}, skippable=True),
    "mul_": Kind(_in_place("mul_"), 2, skippable=True),
    "lerp_": Kind(_in_place("lerp_"), 2, {"weight": (0.25, 0.5)}, skippable=True),
    "slices": Kind(_slices, 2, {"rows": (2, 3), "zeros": (False, True)}, skippable=True),
    "index_put": Kind(_index_put, 2, {"rows": ((0, 2), (1, 4), (0, 5))}, skippable=True),
    "scatter": Kind(_scatter, 1, {"factor": (0.5, 0.75)}),
    "bf16": Kind(lambda m, t, s: t[0].bfloat16().float()),
    "bf16_mm": Kind(
        lambda m, t, s: (t[0].bfloat16() @ m.weight.bfloat16()).float(), 1, {}, {"weight": (COLUMNS, COLUMNS)}
    ),
    "foreach": Kind(_foreach, 2, {"factor": (0.5, 0.75), "loop": (False,)}),
    "average": Kind(_lerp_into_buffer, 1, {"weight": (0.1, 0.3)}, {}, {"average": (ROWS, COLUMNS)}, skippable=True),
    "remember": Kind(_copy_into_buffer, 1, {}, {}, {"last": (ROWS, COLUMNS)}, skippable=True),
    "item": Kind(_item, 2, {"factor": (1.0, 0.5)}),
    "custom": Kind(_custom, 2),
    # What only edits and faults use:
    "clone": Kind(lambda m, t, s: t[0].clone()),
    "views": Kind(lambda m, t, s: t[0].reshape(-1).view(ROWS, COLUMNS)[:].unsqueeze(0).squeeze(0)),
    "double": Kind(lambda m, t, s: t[0].double().float()),
    "times_one": Kind(lambda m, t, s: t[0] * 1.0),
    "forked_draw": Kind(lambda m, t, s: _forked_draw(t[0], s["size"]), 1, {"size": (3, 7)}),
    "extra_draw": Kind(lambda m, t, s: _extra_draw(t[0], s["size"]), 1, {"size": (3, ROWS * COLUMNS)}),
    "foreign": Kind(lambda m, t, s: _foreign_write(t[0])),
}
SPECIAL = ("clone", "views", "double", "times_one", "forked_draw", "extra_draw", "foreign")
_PLAIN = tuple(name for name in KINDS if name not in SPECIAL)
_DRAWS = ("dropout", "noise", "rand")


def _forked_draw(t: torch.Tensor, size: int) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.rand(size)
    return t


def _extra_draw(t: torch.Tensor, size: int) -> torch.Tensor:
    torch.rand(size) if size < ROWS * COLUMNS else torch.rand(ROWS, COLUMNS)
    return t


def _foreign_write(t: torch.Tensor) -> torch.Tensor:
    """Write through the pointer, so that no operator is seen."""
    memory_of(t)[:3] += 0.5
    return t


def random_settings(rng: random.Random, op: str) -> dict[str, Any]:
    return {name: rng.choice(choices) for name, choices in KINDS[op].settings.items()}


def random_program(rng: random.Random, num_nodes: int | None = None) -> Program:
    """A program; what ``rng`` gives decides everything."""
    nodes: list[Node] = []
    for number in range(1, (num_nodes or rng.randint(4, 10)) + 1):
        op = rng.choice(_PLAIN)
        known = [INPUT, *(node.number for node in nodes)]
        recent = known[-4:]
        inputs = tuple(rng.choice(recent) for _ in range(KINDS[op].inputs))
        nodes.append(Node(number, op, inputs, random_settings(rng, op)))
    last = nodes[-1].number
    return Program(
        seed=rng.randint(0, 10_000),
        nodes=(*nodes, Node(last + 1, "linear", (last,), {})),
        heads=(last + 1, rng.choice(nodes).number),
        optimizer=rng.choice(("sgd", "momentum", "adamw")),
        lr=rng.choice((0.05, 0.1)),
        steps=rng.choice((2, 3)),
        foreach=rng.random() < 0.5,
        from_numpy=rng.random() < 0.3,
    )


def is_random(node: Node) -> bool:
    """Whether a node draws from the default generator."""
    return node.op in (*_DRAWS, "extra_draw", "forked_draw")
