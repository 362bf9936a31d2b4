"""One captured run: the state that the recorders of all threads share, and its steps as they are written."""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

from ..trace.model import KINDS, NO_VALUE, NULL, OUTSIDE, PHASES, UNHASHED, StepTable, Strings
from .fingerprint import cpu
from .fingerprint.tensors import Unhashable, quiet, value
from .finite import is_finite
from .links import Memory, read
from .provenance import Modules, Origins, Stacks
from .schema import BREADCRUMB_BYTES, OpInfo, describe

if TYPE_CHECKING:
    from .call import Call, ReadRow, WriteRow
    from .contract import Entry

_CONTRACT: Final = KINDS.index("contract")
_SETUP, _DATA, _FORWARD, _BACKWARD, _OPTIMIZER = range(len(PHASES))
_STATE_SECTIONS: Final = frozenset(("parameter", "buffer", "optimizer"))
_HEADS: Final = (
    "lane",
    "phase",
    "kind",
    "op",
    "args",
    "module",
    "stack",
    "key",
    "flags",
    "generator",
    "state_before",
    "state_after",
)
_LOADER_CHILD, _OTHER_CHILD = 0, 1


class _Lane(threading.local):
    """What a thread is doing."""

    number = NULL
    loading = 0
    optimizing: tuple[int, ...] = ()  # frames of optimizer steps, by id
    silent = 0  # in a compiler or inside a compiled region: operators are no events of their own
    making_workers = 0


def _nested_shape(tensor: torch.Tensor) -> tuple[str, ...]:
    """The sizes of the parts of a nested tensor, which has no shape."""
    if tensor.layout is torch.jagged:
        return tuple(map(str, tensor.shape))
    with quiet():
        return tuple("x".join(map(str, size)) for size in tensor._nested_tensor_size().tolist())


def _is_running(number: int) -> bool:
    """Whether a frame is among the callers."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if id(frame) == number:
            return True
        frame = frame.f_back
    return False


class Session:
    """Collects the events of the current step and hands finished steps to ``write_step``."""

    def __init__(self, root: str, write_step: Callable[[StepTable], None], folder: str | None = None) -> None:
        self.strings = Strings()
        self.memory = Memory()
        self.modules = Modules()
        self.origins = Origins()
        self.stacks = Stacks(root, self.strings.stack, folder)
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
        self.num_calls: dict[str, int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._reads: list[ReadRow] = []
        self._writes: list[WriteRow] = []
        self._first = 0  # number of this step's first event
        self._specs: dict[tuple[Any, ...], int] = {}
        self._constants: dict[int, frozenset[int] | None] = {}  # by spec; None: all values are weak
        self._generators: dict[int, tuple[torch.Generator, int]] = {}
        self._crumbs: mmap.mmap | None = None

    # What the recorder asks on every operator

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
            if _is_running(lane.optimizing[0]):
                return _OPTIMIZER
            lane.optimizing = ()  # the step raised
        if lane.loading:
            return _DATA
        return _SETUP if self.step < 0 else _FORWARD

    def spec(self, tensor: torch.Tensor) -> int:
        """The interned description of a tensor: dtype, shape, and device and layout where they are unusual."""
        shape = tensor.shape if not tensor.is_nested else _nested_shape(tensor)
        key = (tensor.dtype, shape, tensor.layout, tensor.is_cpu)
        found = self._specs.get(key)
        if found is None:
            text = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
            if tensor.layout is not torch.strided:
                text += f" {str(tensor.layout).removeprefix('torch.')}"
            if not tensor.is_cpu:
                text += f" {tensor.device.type}"
            found = self._specs[key] = self.strings.spec(text)
            if tensor.numel() <= 4 or tensor.dtype in cpu.EXACT_INTEGERS:
                self._constants[found] = None
            elif tensor.is_cpu and tensor.layout is torch.strided:
                self._constants[found] = cpu.constants(tensor.dtype, tensor.nbytes)
            else:
                self._constants[found] = frozenset()
        return found

    def is_weak(self, spec: int, found: int) -> bool:
        """Whether a value occurs everywhere and so proves nothing (verdict.md, rule 3)."""
        constants = self._constants[spec]
        return constants is None or found in constants

    def breadcrumb(self, name: bytes) -> None:
        """Leave the name of the operator that starts now where it survives a crash."""
        if self._crumbs is not None:
            self._crumbs[: len(name)] = name

    def leave_breadcrumbs_in(self, path: str) -> None:
        """Use a file of 256 bytes for the breadcrumbs."""
        with Path(path).open("r+b") as file:
            self._crumbs = mmap.mmap(file.fileno(), BREADCRUMB_BYTES)

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

    def defect(self, info: OpInfo, error: Exception) -> None:
        """Our own recorder failed on an operator: the run goes on as it would have, and nothing is proved by it."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}:{where.lineno}"  # noqa: PTH119 - text, not a file
        self.unseen.add(
            f"{info.name}, on which the recorder itself failed ({type(error).__name__} at {place}: {error})"
        )

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
        strings = self.strings
        self.num_operators += 1
        if not any(flags & UNHASHED for *_, flags in writes):
            self.num_hashed += 1
        place = (call.module, call.stack, NULL, call.flags)
        op, args = strings.op(call.info.name), strings.args(call.text)
        self._append((self.lane_number(), call.phase, call.kind, op, args, *place, *draw), call.reads, writes)

    def _append(self, row: tuple[int, ...], reads: list[ReadRow], writes: list[WriteRow]) -> None:
        self._num_events += 1
        self._reads += reads
        self._writes += writes
        self._rows.append((*row, len(self._reads), len(self._writes)))

    def record_contract(self, entries: Iterable[Entry]) -> None:
        """Append one event per contract value, as it is now."""
        if self.closed:  # and perhaps a fork of another thread that holds the lock
            return
        with quiet(), self.lock:
            if not self.closed:
                lane, phase = self.lane_number(), self.phase()
                for entry in entries:
                    self._append_entry(entry, lane, phase)

    def _append_entry(self, entry: Entry, lane: int, phase: int) -> None:
        strings, held = self.strings, entry.held
        if self.nonfinite is not None and not is_finite(held):
            self.nonfinite.append(f"step {self.step}: {entry.name}")
        found, flags = NO_VALUE, 0
        writers: tuple[int, ...] = ()
        if isinstance(held, torch.Tensor):
            spec = self.spec(held)
            try:
                found = value(held)
                place = self.memory.place(held)
                if place is not None:
                    place[0].state = place[0].state or entry.section in _STATE_SECTIONS
                    writers, flags = read(place, found)
            except Unhashable as reason:
                self.unhashed(f"contract {entry.name}", reason)
        else:
            spec = strings.spec(type(held).__name__)
            found, flags = cpu.of_text(repr(held)), OUTSIDE
        op, args = strings.op(entry.section), strings.args(entry.name)
        key = NULL if entry.key is None else strings.key(entry.key)
        row = (lane, phase, _CONTRACT, op, args, NULL, NULL, key, 0, NULL, 0, 0)
        self._append(row, [(found, spec, flags, writers)], [])

    def _take_table(self) -> StepTable:
        """The step collected so far, as columns. The lock is held."""
        table = StepTable(self.step, self._first, self.strings)
        if self._rows:
            *heads, read_ends, write_ends = map(list, zip(*self._rows, strict=True))
            for name, column in zip(_HEADS, heads, strict=True):
                setattr(table, name, column)
            table.read_offsets += read_ends
            table.write_offsets += write_ends
        if self._reads:
            values, specs, flags, writers = zip(*self._reads, strict=True)
            table.read_value, table.read_spec, table.read_flags = list(values), list(specs), list(flags)
            table.writers = list(itertools.chain.from_iterable(writers))
            table.writer_offsets += itertools.accumulate(map(len, writers))
        if self._writes:
            columns = map(list, zip(*self._writes, strict=True))
            table.write_value, table.write_spec, table.write_slot, table.write_flags = columns
        self._rows, self._reads, self._writes = [], [], []
        self._first = self._num_events
        return table

    # Steps

    def relabel_step(self, step: int) -> None:
        """Give the step that is being collected another number (what ran before ``mark_step(0)`` was setup)."""
        with self.lock:
            self.step = step
            if step < 0:
                self._rows = [(row[0], _SETUP if row[1] == _FORWARD else row[1], *row[2:]) for row in self._rows]

    def end_step(self, following: int) -> None:
        """Write the step collected so far and begin another."""
        with self.lock:
            table = self._take_table()
            self.step = following
            self.memory.sweep()
        self._write_step(table)

    def close(self) -> None:
        """Write what is left; later operators are no longer recorded."""
        with self.lock:
            table = self._take_table()
            self.closed = True
        if len(table):
            self._write_step(table)
        if self._crumbs is not None:
            self._crumbs.close()
            self._crumbs = None
