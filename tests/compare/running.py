"""Runs a program under capture in this process, with at most one fault, and keeps its trace in memory."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from opguard_ci.capture.fingerprint.cpu import SCHEME
from opguard_ci.capture.hooks import listening
from opguard_ci.capture.session import Session
from opguard_ci.capture.steps import Steps
from opguard_ci.trace.arrays import StepArrays
from opguard_ci.trace.digest import step_digests
from opguard_ci.trace.model import SCHEMA, Event, StepInfo, StepTable

from .programs import COLUMNS, INPUT, ROWS, Helper, NodeModule, Program


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong. ``node``: in which node; from which step on; what its settings or inputs are then."""

    kind: str
    node: int = -1
    step: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[int, ...] | None = None
    call: int = -1
    """For ``ulp``, ``zero`` and ``negate``: the number of the event whose output is changed, and its operator."""
    op: str = ""
    once: bool = False

    def hits(self, number: int, step: int) -> bool:
        """Whether a node is to go wrong in a step."""
        return number == self.node and (step == self.step if self.once else step >= self.step)


class MemoryTrace:
    """A trace that was never written to disk."""

    def __init__(self, tables: list[StepTable], level: str = "full", key: str = "here") -> None:
        self.tables = {table.step: table for table in tables}
        self.manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "scheme": SCHEME,
            "ranks": 1,
            "level": level,
            "target": "program",
            "profile": "observe",
            "commit": None,
            "environment": {"key": key, "document": {"threads.intra_op": "1", "torch": key}},
            "coverage": {"operators": sum(map(len, tables)), "hashed": 0, "unhashed": [], "unseen": []},
            "steps": [{"step": t.step, "events": len(t), "digests": step_digests(t)} for t in tables],
            "complete": True,
        }
        self.known: dict[tuple[int, str], bytes] = {}
        self._events: list[Event] | None = None
        self.loss = 0.0
        """The last one: from NaN on, nothing makes a difference."""

    def index(self) -> list[StepInfo]:
        return [StepInfo(table.step, table.first, len(table)) for table in self.tables.values()]

    def arrays(self, number: int) -> StepArrays:
        return StepArrays.of(self.tables[number])

    def numbers(self, value: int, spec: str) -> bytes | None:
        return self.known.get((value, spec))

    def events(self) -> list[Event]:
        """All events in order."""
        if self._events is None:
            self._events = [event for table in self.tables.values() for event in table.events()]
        return self._events


class Net(torch.nn.Module):
    """The nodes of a program."""

    def __init__(self, program: Program, fault: Fault | None) -> None:
        super().__init__()
        self.program, self.fault = program, fault
        for node in sorted(program.nodes, key=lambda node: node.number):
            name = f"{program.prefix}{node.number}"
            module = Helper(node, name) if node.helper else NodeModule(node)
            self.add_module(f"help{node.number}" if node.helper else name, module)

    def forward(self, batch: torch.Tensor, step: int) -> dict[int, torch.Tensor]:
        values = {INPUT: batch}
        for node in self.program.nodes:
            settings, inputs = dict(node.settings), node.inputs
            if self.fault is not None and self.fault.hits(node.number, step):
                settings.update(self.fault.settings)
                inputs = self.fault.inputs or inputs
            elif node.op in ("extra_draw", "foreign"):
                values[node.number] = values[inputs[0]]
                continue
            name = f"help{node.number}" if node.helper else f"{self.program.prefix}{node.number}"
            values[node.number] = self.get_submodule(name)(*(values[i] for i in inputs), **settings)
        return values


class _Broken(TorchDispatchMode):
    """Changes what one call returns, below the recorder: the operator itself seems to give other bits."""

    def __init__(self, fault: Fault, session: Session) -> None:
        super().__init__()
        self.fault, self.session, self.done = fault, session, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.done and self.session.next_event() == self.fault.call and str(func) == self.fault.op:
            self.done = True
            with _disable_current_modes():
                written = _written(func, args, kwargs or {})
                _break(self.fault, [t for t in (*_tensors(result), *written) if t.is_floating_point() and t.numel()])
        return result


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that an operator writes in place."""
    names = [(n, a.name) for n, a in enumerate(func._schema.arguments) if a.alias_info and a.alias_info.is_write]
    return _tensors([args[n] if n < len(args) else kwargs.get(name) for n, name in names])


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for held in result for t in _tensors(held)] if isinstance(result, (tuple, list)) else []


def _break(fault: Fault, tensors: list[torch.Tensor]) -> None:
    rng = random.Random(fault.call)
    tensor = rng.choice(tensors).detach()
    size = tensor.itemsize
    word = {2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
    count = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    flat = np.frombuffer((ctypes.c_char * (count * size)).from_address(tensor.data_ptr()), word)
    view = np.lib.stride_tricks.as_strided(flat, tuple(tensor.shape), tuple(s * size for s in tensor.stride()))
    if fault.kind == "ulp":
        place = tuple(rng.randrange(n) for n in tensor.shape)
        view[place] ^= 1
    elif fault.kind == "zero":
        view[...] = 0
    else:
        view[...] ^= word(1 << (8 * size - 1))


def run(program: Program, fault: Fault | None = None, level: str = "full", compiled: Any = None) -> MemoryTrace:
    """One captured run from fixed seeds. ``compiled``: the module that records ordinary calls."""
    tables: list[StepTable] = []
    session = Session("/nowhere", tables.append, level=level, compiled=compiled)
    steps = Steps(session, None)
    torch.manual_seed(program.seed)
    try:
        steps.use_marks()
        with (
            _Broken(fault, session) if fault and fault.op else nullcontext(),
            listening(session, steps, operators=True),
        ):
            loss = _train(program, fault, steps)
    finally:
        session.close()
    trace = MemoryTrace(tables, level)
    trace.loss = loss
    return trace


def _train(program: Program, fault: Fault | None, steps: Steps) -> float:
    net = Net(program, fault)
    lr = program.lr
    optimizer: torch.optim.Optimizer
    if program.optimizer == "adamw":
        optimizer = torch.optim.AdamW(net.parameters(), lr=lr * 0.1, foreach=program.foreach)
    else:
        momentum = 0.9 if program.optimizer == "momentum" else 0.0
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum, foreach=program.foreach)
    outside = np.random.default_rng(program.seed)
    for step in range(program.steps):
        steps.mark(step)
        if program.from_numpy:
            batch = torch.from_numpy(outside.standard_normal((ROWS, COLUMNS)).astype(np.float32))
        else:
            batch = torch.randn(ROWS, COLUMNS)
        target = torch.linspace(-1, 1, ROWS * COLUMNS).view(ROWS, COLUMNS)
        if fault is not None and fault.kind == "lr" and step >= fault.step:
            optimizer.param_groups[0]["lr"] = fault.settings["lr"]
        values = net(batch, step)
        loss = F.mse_loss(values[program.heads[0]], target) + values[program.heads[1]].mean() * 0.1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    steps.returned(None)  # here, where model and optimizer are still alive
    with _disable_current_modes():
        return float(loss.detach())
