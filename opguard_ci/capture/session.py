"""One captured run: the state that the recorders of all threads share, and its steps as they are written."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

from ..trace.model import KINDS, NULL, PHASES, UNHASHED, StepTable, Strings
from .call import Call
from .contract_events import ContractEvents
from .fingerprint import cpu, mix64
from .fingerprint.cuda import DeviceFingerprints
from .fingerprint.quiet import Unhashable
from .late import Late
from .links import Memory
from .look import Looks
from .native.memory import CompiledMemory
from .provenance import Modules, Origins, Stacks
from .rows import Rows, WriteRow
from .schema import BREADCRUMB_BYTES, OpInfo, describe

if TYPE_CHECKING:
    from .collectives import Collectives
    from .keep import Keeper
    from .window import Window

_COLLECTIVE: Final = KINDS.index("collective")
_SETUP, _DATA, _FORWARD, _BACKWARD, _OPTIMIZER = range(len(PHASES))
_LOADER_CHILD, _OTHER_CHILD = 0, 1
BYTES_OF_AUTO: Final = 1 << 28
"""Level ``auto`` is ``full`` while a step hashes no more than so many bytes of inputs."""
MAX_LATE: Final = 50_000
"""So many calls and contract values wait for values of a device at most."""


class _Lane(threading.local):
    """What a thread is doing."""

    number = NULL
    loading = 0
    optimizing: tuple[tuple[int, CodeType], ...] = ()  # frames of optimizer steps, by id, and their code
    silent = 0  # in a compiler or inside a compiled region: operators are no events of their own
    making_workers = 0
    lent_phase: int | None = None  # of who asked for what runs here


def _is_running(number: int, code: CodeType) -> bool:
    """Whether a frame is among the callers. The id of one that is gone may be another's, hardly of the same code."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if id(frame) == number and frame.f_code is code:
            return True
        frame = frame.f_back
    return False


class Session:
    """Collects the events of the current step and hands finished steps to ``write_step``."""

    def __init__(
        self,
        root: str,
        write_step: Callable[[StepTable], None],
        folder: str | None = None,
        level: str = "full",
        compiled: Any = None,
    ) -> None:
        """``compiled``: the module that records ordinary calls (see ``native``); None: Python records them all."""
        self.level = "full" if level == "auto" else level
        """What is recorded. At ``op`` inputs are assumed to be what was last seen where they lie; ``auto`` is ``full``
        until a step is given too much to read."""
        self.assumes = level == "op"
        self.bytes_left: int | None = BYTES_OF_AUTO if level == "auto" else None
        """So many bytes of inputs may still be hashed in this step; None: no matter how many."""
        self.strings = Strings()
        self.modules = Modules()
        self.origins: Origins = Origins() if compiled is None else compiled.Origins()
        self.stacks = Stacks(root, self.strings.stack, folder)
        self.lock = threading.RLock()
        self.infos: dict[Any, OpInfo] = {}
        self.lane = _Lane()
        self.create_graph = False
        self.step = 0
        self.over = False
        """Nothing more is recorded at all."""
        self.closed = False
        """Operators are not recorded: the run is over, or the step lies outside of the window."""
        self.window: Window | None = None
        self.stopped = False  # the target is to end, and is told again if it goes on
        self.call_type: type[Call] = Call
        self.keeper: Keeper | None = None
        self.unhashed_operators: dict[str, str] = {}
        self.unseen: set[str] = set()
        self.notes: set[str] = set()
        self._children = mmap.mmap(-1, 2)  # shared with forked children, which tell here that they ran operators
        self._forked_as: int | None = None
        self._write_step = write_step
        self._num_lanes = 0
        self.num_calls: dict[str, int] = {}
        self.rows: Rows = Rows() if compiled is None else compiled.Rows()
        self.devices = DeviceFingerprints(self.notes.add, compiled)
        memory = Memory() if compiled is None else CompiledMemory(compiled)
        self.looks = Looks(memory, self.strings.spec, self.devices, self.unhashed, self._ask_for_constants)
        self.looks.assumes = self.assumes
        self._late = Late(self.devices, self.looks.learn_constants, self.defect)
        self._ready: list[StepTable] = []
        self.contract = ContractEvents(self)
        self._generators: dict[int, tuple[torch.Generator, int]] = {}
        self.begun: list[Any] = []
        """Collectives whose results were not looked at yet; ``collectives`` does it before an operator uses them."""
        self.collectives: Collectives | None = None
        self.crumbs: mmap.mmap | None = None
        """Where the name of the operator that starts is left for the account of a crash."""
        self.core = None if compiled is None else compiled.Core(self, memory.known, self.rows, self.origins)
        """Records ordinary calls before they come to Python."""

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
            if _is_running(*lane.optimizing[0]):
                return _OPTIMIZER
            lane.optimizing = ()  # the step raised
        if lane.loading:
            return _DATA
        if lane.lent_phase is not None:
            return lane.lent_phase
        return _SETUP if self.step < 0 else _FORWARD

    def spend(self, nbytes: int) -> None:
        """So many bytes of inputs were hashed at level ``auto``. The lock is held."""
        assert self.bytes_left is not None
        self.bytes_left -= nbytes
        if self.bytes_left < 0:
            self.bytes_left = None
            self.assumes = self.looks.assumes = True
            self.level = "op"
            self.notes.add(
                f"Level auto became op in step {self.step}, which read more than {BYTES_OF_AUTO >> 20} MB: from there "
                "inputs are not hashed."
            )

    def _ask_for_constants(self, spec: int, tensor: torch.Tensor) -> None:
        patterns = [pattern for pattern in cpu.patterns(tensor.dtype) if len(pattern) <= mix64.WORD]
        try:
            with self.lock:
                handles = [self.devices.queue_constant(pattern, tensor) for pattern in patterns]
                self._late.add_constants(spec, handles)
        except Unhashable:  # asked again when the tensor is
            pass

    def leave_breadcrumbs_in(self, path: str) -> None:
        """Use a file of 256 bytes for the breadcrumbs."""
        with Path(path).open("r+b") as file:
            self.crumbs = mmap.mmap(file.fileno(), BREADCRUMB_BYTES)
        if self.core is not None:
            self.core.begin_crumbs(self.crumbs)

    def enter_forked_child(self) -> None:
        """Note that we are a fork of the run: what it computes is not recorded, but that it computes is noted."""
        self.end()
        self._forked_as = _LOADER_CHILD if self.lane.making_workers else _OTHER_CHILD

    def passed_by(self) -> None:
        """An operator runs that is not recorded."""
        if self._forked_as is not None:
            self._children[self._forked_as] = 1

    def look_at_children(self) -> None:
        """Take note of operators that ran in forked processes."""
        if self._children[_LOADER_CHILD]:
            self.notes.add("Operators ran inside DataLoader workers: what the workers handed over is recorded as data.")
        rpc = sys.modules.get("torch.distributed.rpc")
        if rpc is not None and getattr(rpc, "_is_current_rpc_agent_set", bool)():
            self.unseen.add("what torch.distributed.rpc ran for other processes")
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
        """The fingerprint of a generator's state, which lies on the host, whatever it draws for."""
        state = generator.get_state()
        return cpu.of_memory(state.data_ptr(), state.nbytes, state.dtype)

    # Links

    @property
    def scheme(self) -> str:
        """The schemes of the fingerprints so far."""
        return f"{cpu.SCHEME}+{mix64.SCHEME}" if self.devices.used else cpu.SCHEME

    def settle(self) -> None:
        """Have the values in the links that another thread is computing (``native/src/aside.h``). The lock is held."""
        if self.core is not None:
            self.core.settle()

    def link(self, work: Callable[[], None], info: OpInfo | None = None) -> None:
        """Work something out from values: now, or when those of a device are there. The lock is held."""
        if self.devices.used:
            self.link_late(work, info)
        else:
            work()

    def link_late(self, work: Callable[[], None], info: OpInfo | None) -> None:
        """Work something out when the values of a device are there. The lock is held."""
        self._late.add(work, info)
        if len(self._late) >= MAX_LATE:
            self.cut_late()

    def cut_late(self) -> None:
        """Work out now what waits for a device: it has become much. The lock is held."""
        self._late.cut(self.step, ends=False)
        self._settle(0)

    def resolved(self, value: int) -> int:
        """What a handle stands for, in work that was given to ``link``; a value stands for itself."""
        return value if value >= 0 else self.devices.values.of(value)

    def _settle(self, keep: int) -> None:
        """Work out what waits for a device, but for so many of the last parts."""
        while self._late.num_parts() > keep:
            step, ends = self._late.settle()
            if ends:
                self._ready.append(self.rows.take(step, self.strings))

    def discard(self) -> None:
        """Write no more, also not what is still on its way."""
        with self.lock:
            self.end()
            self._late.discard()
            self.rows.clear()
            self._ready = []

    # Events

    def next_event(self) -> int:
        """The number that the next appended event will get. Hold the lock until it is appended."""
        return self.rows.num_events

    def lane_number(self) -> int:
        """The thread's number, in order of first appearance."""
        if self.lane.number == NULL:
            self.lane.number = self.new_lane()
        return self.lane.number

    def new_lane(self) -> int:
        """A number for a thread that is about to start."""
        with self.lock:
            self._num_lanes += 1
            return self._num_lanes - 1

    def append(self, call: Call, writes: list[WriteRow], draw: tuple[int, int, int]) -> None:
        """Append the event of a finished call. The lock is held."""
        strings, rows = self.strings, self.rows
        rows.num_calls += 1
        for *_, flags in writes:
            if flags & UNHASHED:
                break
        else:
            rows.num_hashed += 1
        op, args = strings.op.ids.get(call.info.name), strings.args.ids.get(call.text)
        if op is None:
            op = strings.op(call.info.name)
        if args is None:
            args = strings.args(call.text)
        key = strings.key(call.key) if call.kind == _COLLECTIVE else NULL  # type: ignore[attr-defined]
        row = (call.lane, call.phase, call.kind, op, args, call.module, call.stack, key, call.flags, *draw)
        rows.append(row, call.reads, writes)

    # Steps

    def relabel_step(self, step: int) -> None:
        """Give the step that is being collected another number (what ran before ``mark_step(0)`` was setup)."""
        with self.lock:
            if self.devices.used:
                self._late.cut(self.step, ends=False)
                self._settle(0)
            self._enter(step)
            if step < 0:
                self.rows.make_setup()

    def look_only_at(self, window: Window) -> None:
        """Record operators in the steps of a window only, elsewhere the contract alone. To be called before the run."""
        self.window = window
        self.closed = self.step not in window

    @property
    def sees_operators(self) -> bool:
        """Whether operators are recorded now, so that links know what they left in memory."""
        return self.level != "contract" and not self.closed

    def end(self) -> None:
        """Record no more."""
        self.over = self.closed = True

    def _enter(self, step: int) -> None:
        """Another step begins. The lock is held.

        What ran unseen outside of the window is no foreign write: memory is met anew where the window begins and ends.
        """
        was_closed, self.step = self.closed, step
        if self.window is None or self.over:
            return
        self.closed = step not in self.window
        if self.closed != was_closed:
            if self.devices.used:
                self._settle(0)
            self.looks.memory.close()
            for held in self.contract.state:
                place = self.looks.memory.place(held)
                if place is not None:
                    place[0].state = True
        self.contract.state = []

    def end_step(self, following: int) -> None:
        """Write the step collected so far and begin another.

        A step with device tensors is written at the end of the next one: the device need not be waited for.
        """
        with self.lock:
            self._end(keep=1)
            self._enter(following)
            if self.bytes_left is not None:
                self.bytes_left = BYTES_OF_AUTO
            self.looks.memory.sweep()
        self._write_ready()

    def _end(self, keep: int) -> None:
        if self.devices.used:
            self._late.cut(self.step, ends=True)
            self._settle(keep)
        else:
            self._ready.append(self.rows.take(self.step, self.strings))

    def _write_ready(self) -> None:
        while self._ready:
            self._write_step(self._ready.pop(0))

    def close(self) -> None:
        """Write what is left; later operators are no longer recorded."""
        if self.collectives is not None and not self.over:
            self.collectives.close()
        with self.lock:
            try:
                self._end(keep=0)
            except RuntimeError as error:
                first_line = str(error).partition("\n")[0]
                self.unseen.add(f"what the last steps computed, for the device failed ({first_line})")
            self.end()
            if self._ready and not len(self._ready[-1]):
                self._ready.pop()
        self._write_ready()
        with self.lock:
            self.looks.memory.close()
        if self.core is not None:
            self.core.end()
        if self.crumbs is not None:
            self.crumbs.close()
            self.crumbs = None
