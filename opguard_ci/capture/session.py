"""One captured run: the state that the recorders of all threads share, and its steps as they are written."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..trace.model import KINDS, NO_VALUE, NULL, OUTSIDE, PHASES, UNHASHED, StepTable, Strings
from .fingerprint import cpu
from .fingerprint.tensors import Unhashable, value
from .finite import is_finite
from .links import Memory
from .provenance import Modules, Origins, Stacks
from .schema import OpInfo, describe

if TYPE_CHECKING:
    from .contract import Entry
    from .recorder import Call, WriteRow

_CONTRACT: Final = KINDS.index("contract")
_SETUP, _DATA, _FORWARD, _BACKWARD, _OPTIMIZER = range(len(PHASES))
_BREADCRUMB_BYTES: Final = 256
_LOADER_CHILD, _OTHER_CHILD = 0, 1


class _Lane(threading.local):
    """What a thread is doing."""

    number = NULL
    loading = 0
    optimizing = 0
    compiling = 0
    in_region = 0
    making_workers = 0


class Session:
    """Collects the events of the current step and hands finished steps to ``write_step``."""

    def __init__(self, root: str, write_step: Callable[[StepTable], None]) -> None:
        self.strings = Strings()
        self.memory = Memory()
        self.modules = Modules()
        self.origins = Origins()
        self.stacks = Stacks(root, self.strings.stack)
        self.lock = threading.RLock()
        self.infos: dict[Any, OpInfo] = {}
        self.lane = _Lane()
        self.create_graph = False
        self.step = 0
        self.closed = False
        self.num_operators = 0
        self.num_hashed = 0
        self.unhashed_operators: dict[str, str] = {}
        self.unseen: set[str] = set()
        self.notes: set[str] = set()
        self.nonfinite: list[str] | None = None  # contract values with NaN or infinities, if they are looked for
        self._children = mmap.mmap(-1, 2)  # shared with forked children, which tell here that they ran operators
        self._forked_as: int | None = None
        self._write_step = write_step
        self._num_lanes = 0
        self._num_events = 0
        self._table = StepTable(0, 0, self.strings)
        self._op_ids: dict[str, int] = {}
        self._specs: dict[tuple[Any, ...], int] = {}
        self._generators: dict[int, tuple[torch.Generator, int]] = {}
        self._crumbs: mmap.mmap | None = None

    # What the recorder asks on every operator

    @property
    def active(self) -> bool:
        """Whether operators of this thread are events of their own: not in a compiler, not inside a compiled region."""
        return not self.closed and not self.lane.compiling and not self.lane.in_region

    def describe(self, func: Any) -> OpInfo:
        """The facts about an operator, read from its schema once."""
        info = self.infos[func] = describe(func)
        return info

    def phase(self) -> int:
        """The phase of this thread, as an index into PHASES."""
        if torch._C._current_graph_task_id() != -1:
            return _BACKWARD
        lane = self.lane
        if lane.optimizing:
            return _OPTIMIZER
        if lane.loading:
            return _DATA
        return _SETUP if self.step < 0 else _FORWARD

    def spec(self, tensor: torch.Tensor) -> int:
        """The interned description of a tensor: dtype, shape, and device and layout where they are unusual."""
        key = (tensor.dtype, tensor.shape, tensor.layout, tensor.is_cpu)
        found = self._specs.get(key)
        if found is None:
            text = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"
            if tensor.layout is not torch.strided:
                text += f" {str(tensor.layout).removeprefix('torch.')}"
            if not tensor.is_cpu:
                text += f" {tensor.device.type}"
            found = self._specs[key] = self.strings.spec(text)
        return found

    def breadcrumb(self, text: str) -> None:
        """Leave the name of the operator that starts now where it survives a crash."""
        if self._crumbs is not None:
            data = text.encode("utf-8", "replace")[: _BREADCRUMB_BYTES - 1]
            self._crumbs[: len(data) + 1] = data + b"\0"

    def leave_breadcrumbs_in(self, path: str) -> None:
        """Use a file of 256 bytes for the breadcrumbs."""
        with Path(path).open("r+b") as file:
            self._crumbs = mmap.mmap(file.fileno(), _BREADCRUMB_BYTES)

    def enter_forked_child(self) -> None:
        """Note that we are a fork of the run: what it computes is not recorded, but that it computes is noted."""
        self.closed = True
        self._forked_as = _LOADER_CHILD if self.lane.making_workers else _OTHER_CHILD

    def passed_by(self) -> None:
        """An operator runs that is not recorded."""
        if self._forked_as is not None:
            self._children[self._forked_as] = 1

    def look_at_children(self) -> None:
        """Take note of operators that ran in forked processes."""
        if self._children[_LOADER_CHILD]:
            self.notes.add("Operators ran inside DataLoader workers: what the workers handed over is recorded as data.")
        if self._children[_OTHER_CHILD]:
            self.unseen.add("operators in processes that the target forked")

    def unhashed(self, op: str, reason: Unhashable) -> None:
        """Note that a tensor of ``op`` could not be fingerprinted."""
        self.unhashed_operators.setdefault(op, str(reason))

    # Generators

    def default_generator(self, tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> torch.Generator:
        """The generator that an operator without an explicit one draws from."""
        device = kwargs.get("device") or (tensors[0].device if tensors else None)
        if device is not None and torch.device(device).type == "cuda":
            index = torch.device(device).index
            return torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
        return torch.default_generator

    def generator_number(self, generator: torch.Generator) -> int:
        """The number of a generator: 0 for torch's default one, then by first use."""
        entry = self._generators.get(id(generator))
        if entry is None:
            number = (
                0
                if generator is torch.default_generator
                else max((n for _, n in self._generators.values()), default=0) + 1
            )
            entry = self._generators[id(generator)] = (generator, number)
        return entry[1]

    @staticmethod
    def generator_state(generator: torch.Generator) -> int:
        """The fingerprint of a generator's state."""
        return value(generator.get_state())

    # Events

    def next_event(self) -> int:
        """The number that the next appended event will get. Hold the lock until it is appended."""
        return self._num_events

    def lane_number(self) -> int:
        """The thread's number, in order of first appearance."""
        if self.lane.number == NULL:
            with self.lock:
                self.lane.number = self._num_lanes
                self._num_lanes += 1
        return self.lane.number

    def append(self, call: Call, writes: list[WriteRow], draw: tuple[int, int, int]) -> None:
        """Append the event of a finished call. The lock is held."""
        info, table = call.info, self._table
        op = self._op_ids.get(info.name)
        if op is None:
            op = self._op_ids[info.name] = self.strings.op(info.name)
        self.num_operators += 1
        if not any(flags & UNHASHED for *_, flags in writes):
            self.num_hashed += 1
        self._append_head(call.phase, call.kind, op, self.strings.args(call.text))
        table.module.append(call.module)
        table.stack.append(call.stack)
        table.key.append(NULL)
        table.flags.append(call.flags)
        table.generator.append(draw[0])
        table.state_before.append(draw[1])
        table.state_after.append(draw[2])
        for found, spec, flags, writers in call.reads:
            table.read_value.append(found)
            table.read_spec.append(spec)
            table.read_flags.append(flags)
            table.writers += writers
            table.writer_offsets.append(len(table.writers))
        for found, spec, slot, flags in writes:
            table.write_value.append(found)
            table.write_spec.append(spec)
            table.write_slot.append(slot)
            table.write_flags.append(flags)
        table.read_offsets.append(len(table.read_value))
        table.write_offsets.append(len(table.write_value))

    def _append_head(self, phase: int, kind: int, op: int, args: int) -> None:
        table = self._table
        self._num_events += 1
        table.lane.append(self.lane_number())
        table.phase.append(phase)
        table.kind.append(kind)
        table.op.append(op)
        table.args.append(args)

    def record_contract(self, entries: Iterable[Entry]) -> None:
        """Append one event per contract value, as it is now."""
        with _disable_current_modes(), torch.no_grad(), self.lock:
            for entry in entries:
                self._append_entry(entry)

    def _append_entry(self, entry: Entry) -> None:
        table, strings = self._table, self.strings
        held = entry.held
        if self.nonfinite is not None and not is_finite(held):
            self.nonfinite.append(f"step {self.step}: {entry.name}")
        found, flags = NO_VALUE, 0
        writers: tuple[int, ...] = ()
        if isinstance(held, torch.Tensor):
            spec = self.spec(held)
            try:
                found = value(held)
                writers, flags = self.memory.read(held, found)
            except Unhashable as reason:
                self.unhashed(f"contract {entry.name}", reason)
        else:
            spec = strings.spec(type(held).__name__)
            found, flags = cpu.of_text(repr(held)), OUTSIDE
        self._append_head(self.phase(), _CONTRACT, strings.op(entry.section), strings.args(entry.name))
        table.module.append(NULL)
        table.stack.append(NULL)
        table.key.append(NULL if entry.key is None else strings.key(entry.key))
        table.flags.append(0)
        table.generator.append(NULL)
        table.state_before.append(0)
        table.state_after.append(0)
        table.read_value.append(found)
        table.read_spec.append(spec)
        table.read_flags.append(flags)
        table.writers += writers
        table.writer_offsets.append(len(table.writers))
        table.read_offsets.append(len(table.read_value))
        table.write_offsets.append(len(table.write_value))

    # Steps

    def relabel_step(self, step: int) -> None:
        """Give the step that is being collected another number (what ran before ``mark_step(0)`` was setup)."""
        with self.lock:
            self.step = self._table.step = step
            if step < 0:
                table = self._table
                table.phase = [_SETUP if phase == _FORWARD else phase for phase in table.phase]

    def end_step(self, following: int) -> None:
        """Write the step collected so far and begin another."""
        with self.lock:
            table, self.step = self._table, following
            self._table = StepTable(following, self._num_events, self.strings)
        self._write_step(table)
        self.memory.sweep()

    def close(self) -> None:
        """Write what is left; later operators are no longer recorded."""
        with self.lock:
            table, self.closed = self._table, True
        if len(table):
            self._write_step(table)
        if self._crumbs is not None:
            self._crumbs.close()
            self._crumbs = None
