"""The dispatch mode that sees every operator of a thread and hands what it read and wrote to the session."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..trace.model import (
    HIDDEN,
    HOST,
    KINDS,
    NO_VALUE,
    NULL,
    RANDOM,
    RECOMPUTED,
    STRIDED,
    UNHASHED,
    UNREAD,
    WEAK,
)
from .fingerprint import cpu
from .fingerprint.tensors import Unhashable, value
from .schema import OpInfo
from .text import argument_text

if TYPE_CHECKING:
    from .session import Session

_OP, _VIEW, _COPY, _ALLOC, _REGION = (KINDS.index(kind) for kind in ("op", "view", "copy", "alloc", "region"))
_BACKWARD: Final = 3  # index of "backward" in PHASES
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_EMPTY: Final[dict[str, Any]] = {}

ReadRow = tuple[int, int, int, tuple[int, ...]]  # value, spec, flags, writers
WriteRow = tuple[int, int, int, int]  # value, spec, slot, flags


class Recorder(TorchDispatchMode):
    """Records the operators of the thread that entered it. One instance per thread."""

    supports_higher_order_operators = True

    def __init__(self, session: Session) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.session = session

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep torch.compile on: a mode that does not say so switches it off."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record one call. Never changes arguments, results or errors of the call."""
        kwargs = kwargs or _EMPTY
        for kind in types:
            if kind not in _PLAIN and _dispatches(kind):
                return NotImplemented  # a wrapper subclass: its inner operators will come by
        session = self.session
        info = session.infos.get(func) or session.describe(func)
        if info.skipped or not session.active:
            session.passed_by()
            return func(*args, **kwargs)
        call = Call(session, info)
        tensors: list[torch.Tensor] = []
        owners: list[str] = []
        text, generator = argument_text(info, args, kwargs, tensors, owners)
        call.before(text, tensors, owners, generator or session.default_generator(tensors, kwargs))
        result = func(*args, **kwargs)
        call.after(result)
        return result


def _dispatches(kind: type) -> bool:
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not torch.Tensor.__torch_dispatch__ and own is not torch._C._disabled_torch_dispatch_impl


class Call:
    """One operator call, between its reads and its writes."""

    numbers: Sequence[int]  # of the arguments in ``tensors``, among all tensor arguments

    __slots__ = (
        "_draw_from",
        "_info",
        "_session",
        "_state",
        "flags",
        "kind",
        "module",
        "numbers",
        "owners",
        "phase",
        "reads",
        "regions",
        "stack",
        "tensors",
        "text",
    )

    def __init__(self, session: Session, info: OpInfo) -> None:
        self._session = session
        self._info = info

    def before(self, text: str, tensors: list[torch.Tensor], owners: list[str], generator: torch.Generator) -> None:
        """Where the call comes from and what it is about to read.

        ``owners`` names the argument that holds each tensor; ``generator`` is the one it would draw from.
        """
        session, info = self._session, self._info
        session.breadcrumb(info.name)
        self.phase = phase = session.phase()
        self._locate(phase)
        self.text, self.tensors, self.owners, self.numbers = text, tensors, owners, range(len(tensors))
        self.flags = (RANDOM if info.random else 0) | (HOST if info.host else 0)
        if phase == _BACKWARD and torch.is_grad_enabled() and not session.create_graph:
            self.flags |= RECOMPUTED
        memory, spec = session.memory, session.spec
        reads: list[ReadRow] = []
        regions: list[tuple[Any, int]] = []
        for tensor, owner in zip(tensors, owners, strict=True):
            if owner in info.overwrites:
                reads.append((NO_VALUE, spec(tensor), UNREAD, ()))
                regions.append((None, 0))
                continue
            try:
                found = value(tensor)
            except Unhashable as reason:
                session.unhashed(info.name, reason)
                reads.append((NO_VALUE, spec(tensor), 0, ()))
                regions.append((None, 0))
                continue
            with session.lock:
                writers, flags = memory.read(tensor, found)
            region = memory.region(tensor)
            regions.append((region, region.version if region is not None else 0))
            if not (tensor.layout is torch.strided and tensor.is_contiguous()):
                flags |= STRIDED
            reads.append((found, spec(tensor), flags, writers))
        self.reads, self.regions = reads, regions
        self._draw_from = None
        if info.random or not info.builtin:
            self._draw_from = generator
            self._state = session.generator_state(self._draw_from)

    def _locate(self, phase: int) -> None:
        session = self._session
        module = session.modules.current()
        if phase == _BACKWARD and module is None:
            place = session.origins.of_current_node()
            if place is not None:
                self.module, self.stack = place
                return
        self.module = NULL if module is None else session.strings.module(module)
        self.stack = session.stacks.current(sys._getframe(3))

    def release_inputs(self) -> None:
        """Let go of inputs that the call does not write: it may free them while it runs, as in a bare run."""
        written = [n for n, owner in enumerate(self.owners) if owner in self._info.written]
        self.tensors, self.owners = [self.tensors[n] for n in written], [self.owners[n] for n in written]
        self.numbers = written

    def after(self, result: Any) -> None:
        """What the call wrote; appends the event."""
        session, info = self._session, self._info
        if self.phase != _BACKWARD and torch.is_grad_enabled():
            session.origins.remember(self.module, self.stack)
        outputs: list[torch.Tensor] = []
        _collect(result, outputs)
        tensors = self.tensors
        written = [n for n, owner in enumerate(self.owners) if owner in info.written]
        in_place = {id(tensors[n]) for n in written}
        writes: list[tuple[torch.Tensor, WriteRow]] = []
        for slot, tensor in enumerate(outputs):
            if id(tensor) not in in_place:
                writes.append((tensor, self._write(tensor, slot, 0)))
        for n in written:
            writes.append((tensors[n], self._write(tensors[n], ~self.numbers[n], 0)))
        self.kind = self._kind(outputs)
        hidden = self._hidden_writes(written) if info.kind == _OP else []
        writes += hidden
        draw = (NULL, 0, 0)
        if self._draw_from is not None:
            state = session.generator_state(self._draw_from)
            if info.random or state != self._state:
                draw = (session.generator_number(self._draw_from), self._state, state)
        with session.lock:
            event = session.next_event()
            memory = session.memory
            for tensor, (found, _, slot, _) in writes:
                if slot >= 0 and (info.kind == _VIEW or (info.kind == _REGION and self._is_input(tensor))):
                    memory.see(tensor, found)
                else:
                    memory.write(tensor, found, event)
            session.append(self, [row for _, row in writes], draw)

    @property
    def info(self) -> OpInfo:
        """The operator."""
        return self._info

    def _is_input(self, tensor: torch.Tensor) -> bool:
        """Whether a compiled graph handed out memory that it was given (what it saves for backward)."""
        region = self._session.memory.region(tensor)
        return any(given is region and region is not None for given, _ in self.regions)

    def _kind(self, outputs: list[torch.Tensor]) -> int:
        """A copy to another dtype, or one that broadcasts, computes something."""
        kind = self._info.kind
        if kind != _COPY:
            return kind
        sources = [t for t, owner in zip(self.tensors, self.owners, strict=True) if owner not in self._info.overwrites]
        results = [
            t for t, owner in zip(self.tensors, self.owners, strict=True) if owner in self._info.written
        ] or outputs
        same = len(sources) == len(results) and all(
            a.dtype == b.dtype and a.shape == b.shape for a, b in zip(sources, results, strict=True)
        )
        return _COPY if same else _OP

    def _write(self, tensor: torch.Tensor, slot: int, flags: int) -> WriteRow:
        session, info = self._session, self._info
        spec = session.spec(tensor)
        if info.kind == _ALLOC:
            return NO_VALUE, spec, slot, flags
        try:
            found = value(tensor)
        except Unhashable as reason:
            session.unhashed(info.name, reason)
            return NO_VALUE, spec, slot, flags | UNHASHED
        if is_weak(tensor, found):
            flags |= WEAK
        return found, spec, slot, flags

    def _hidden_writes(self, written: list[int]) -> list[tuple[torch.Tensor, WriteRow]]:
        """Read-only arguments that have other bytes now, though no recorded operator of any thread wrote them
        meanwhile.
        """
        found = []
        known = {id(self.regions[n][0]) for n in written} | {
            id(self._session.memory.region(self.tensors[n])) for n in written
        }
        for n, (before, _, flags, _) in enumerate(self.reads):
            region, version = self.regions[n]
            if before == NO_VALUE or flags & UNREAD or n in written or region is None or id(region) in known:
                continue
            try:
                now = value(self.tensors[n])
            except Unhashable:
                continue
            if now != before and region.version == version:
                found.append((self.tensors[n], self._write(self.tensors[n], ~n, HIDDEN)))
        return found


def _collect(result: Any, into: list[torch.Tensor]) -> None:
    if isinstance(result, torch.Tensor):
        into.append(result)
    elif isinstance(result, (tuple, list)):
        for item in result:
            _collect(item, into)


def is_weak(tensor: torch.Tensor, found: int) -> bool:
    """Whether a value occurs everywhere and so proves nothing (verdict.md, rule 3)."""
    if tensor.numel() <= 4 or tensor.dtype in cpu.EXACT_INTEGERS:
        return True
    if tensor.is_meta or tensor.layout is not torch.strided:
        return False
    return cpu.is_constant(found, tensor.dtype, tensor.nbytes)
