"""Collectives: begun by an operator, done when somebody waits for them, and recorded with what they gave.

What a collective writes is not there when its operator returns. Its event is appended when it is waited for
(``Work.wait``, ``wait_tensor``), and where that is done out of sight, as DDP's reducer does it, when the first operator
or the contract uses the memory: by then the program must have waited. Both are places in the program and not moments in
time, so that the order of events repeats itself. Nothing is waited for on our account.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work, _resolve_process_group
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..trace.model import KINDS, PHASES
from .call import Call
from .collective_ops import WAIT
from .fingerprint.quiet import Unhashable
from .links import LEFT
from .recorder import Recorder
from .results import collect
from .rows import NO_DRAW
from .text import OVERWRITTEN, READ, SCRATCH, WRITTEN, arguments

if TYPE_CHECKING:
    from .schema import OpInfo
    from .session import Session

_VIEW: Final = KINDS.index("view")
_BACKWARD: Final = PHASES.index("backward")


class Collectives:
    """The collectives of a run that are not done yet, in order of their beginning. The session's lock guards it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.begun: list[_Collective] = session.begun
        self._numbers: dict[str, int] = {}
        self._groups: dict[str, Any] = {}
        """Process groups that were used in backward. They are kept: see docs/decisions/045."""

    # What the recorder tells

    def call(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operator of a collective; what it reads is recorded now."""
        if info.name == WAIT:
            result = func(*args, **kwargs)
            self.used(args)
            return result
        session = self.session
        call: _Collective | None = None
        try:
            call = _Collective(session, info, args, kwargs)
            call.before(args, kwargs)
        except Exception as error:
            session.defect(info, error)
            call = None
        try:
            result = func(*args, **kwargs)
        except BaseException:
            if call is not None:
                call.abandon()
            raise
        if call is not None:
            try:
                self._add(call, result)
            except Exception as error:
                call.abandon()
                session.defect(info, error)
        return result

    def before(self, info: OpInfo, args: Iterable[Any]) -> None:
        """An operator runs. Looking at memory from elsewhere, as views do, does not mean that it was waited for."""
        if info.kind != _VIEW and info.name != WAIT:
            self.used(args)

    def used(self, held: Iterable[Any]) -> None:
        """These tensors are used: collectives that wrote them are done."""
        storages = _storages(held)
        with self.session.lock:
            for call in [call for call in self.begun if call.storages & storages]:
                self._finish(call)

    def waited(self, work: Any) -> None:
        """Somebody waited for the end of ``work``."""
        with self.session.lock:
            for call in [call for call in self.begun if call.work is work]:
                call.work = None
                self._finish(call)

    def close(self) -> None:
        """The run is over, and nobody will use what is left."""
        with self.session.lock:
            for call in list(self.begun):
                self._finish(call)

    # How it is kept

    def _add(self, call: _Collective, result: Any) -> None:
        with self.session.lock:
            if call.phase == _BACKWARD:
                self._groups[call.channel] = call.group
            number = self._numbers[call.channel] = self._numbers.get(call.channel, -1) + 1
            call.key = f"{call.channel} #{number}"
            call.begin(result)
            self.begun.append(call)
            if not call.storages:  # nothing comes back: all is known
                self._finish(call)

    def _finish(self, call: _Collective) -> None:
        self.begun.remove(call)
        try:
            call.finish()
        except Exception as error:
            call.abandon()
            self.session.defect(call.info, error)


class _Collective(Call):
    """One collective, from its beginning to its end."""

    __slots__ = ("_outputs", "channel", "group", "key", "storages", "work")

    def __init__(self, session: Session, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shown = tuple(_shown(argument) for argument in args)
        given = arguments(info, shown, {name: _shown(argument) for name, argument in kwargs.items()})
        super().__init__(session, info, given)
        by_name = {**dict(zip(info.positional, args, strict=False)), **kwargs}
        self.group = _group_of(by_name)
        self.channel = _channel(info, self.group, by_name)
        if info.name.startswith("c10d.broadcast_.") and self.group is not None:
            sends = by_name["root_rank"] == self.group.rank()
            given.marks = [READ if sends else mark for mark in given.marks]
        self.key = ""
        self.work: Any = None
        self.storages: set[int] = set()
        self._outputs: list[torch.Tensor] = []

    def begin(self, result: Any) -> None:
        """The operator has returned: keep what it will write, and let go of the rest."""
        held: list[torch.Tensor] = []
        collect(result, held)
        given = {id(tensor) for tensor in self._given.tensors}
        self._outputs = [tensor for tensor in held if id(tensor) not in given]
        parts = result if isinstance(result, tuple) else (result,)
        self.work = next((_unboxed(part, Work) for part in parts if isinstance(part, torch.ScriptObject)), None)
        self.release_inputs()
        self.storages = _storages([*self._outputs, *self._written()])

    def _written(self) -> list[torch.Tensor]:
        marks = self._given.marks
        return [t for t, mark in zip(self._given.tensors, marks, strict=True) if mark in (WRITTEN, OVERWRITTEN)]

    def finish(self) -> None:
        """It is done: record it with its results. The lock is held."""
        session, info, given = self._session, self.info, self._given
        changed = [k for k, mark in enumerate(given.marks) if mark and mark != SCRATCH]
        made = [*self._outputs, *(given.tensors[k] for k in changed)]
        slots = [*range(len(self._outputs)), *(~self.numbers[k] for k in changed)]
        self.lane = session.lane_number()  # of the waiting, for the place of the event is there
        self._draw, self._suspects = NO_DRAW, []
        if not made or self._is_done():
            self._changes = self._look_at(made, slots)
        else:
            session.unhashed(info.name, Unhashable("its result was used, or the run ended, before it was waited for"))
            looks = [session.looks.beside(tensor) for tensor in made]
            self._changes = [(look, slot, LEFT, look[2]) for look, slot in zip(looks, slots, strict=True)]
        self.work, self._outputs, given.tensors = None, [], []
        self._conclude()

    def _is_done(self) -> bool:
        if self.work is None or not all(tensor.is_cpu for tensor in self._written()):
            return True  # on a device the stream has waited, or will not
        try:
            return bool(self.work.get_future().done())  # before the work itself says so
        except RuntimeError:  # this one has no future, and does not know it either
            return True


# What the arguments say


def _shown(argument: Any) -> Any:
    """An argument as the recorded text should say it: groups with their ranks, reductions by name."""
    if isinstance(argument, dist.ProcessGroup):
        return _described(argument)
    if not isinstance(argument, torch.ScriptObject):
        return argument
    held: Any = argument
    name = str(argument._type()).rpartition(".")[2]
    if name == "ProcessGroup":
        return _described(_unboxed(argument, dist.ProcessGroup))
    if name == "ReduceOp" and "op" in held._method_names():
        return dist.ReduceOp.RedOpType(held.op()).name
    return name


def _described(group: dist.ProcessGroup | None) -> str:
    """A process group by its name and the global ranks in it."""
    return "" if group is None else f"{group.group_name} of {', '.join(map(str, _ranks_of(group)))}"


def _ranks_of(group: dist.ProcessGroup) -> list[int]:
    try:
        return list(dist.get_process_group_ranks(group))
    except (KeyError, RuntimeError, ValueError):  # made without torch.distributed knowing
        return list(range(group.size()))


def _unboxed(held: torch.ScriptObject, kind: Any) -> Any:
    try:
        return kind.unbox(held)
    except RuntimeError:  # of another class, or empty
        return None


def _group_of(arguments_by_name: dict[str, Any]) -> dist.ProcessGroup | None:
    held = arguments_by_name.get("process_group", arguments_by_name.get("group_name"))
    if isinstance(held, torch.ScriptObject):
        return cast("dist.ProcessGroup | None", _unboxed(held, dist.ProcessGroup))
    if isinstance(held, str):
        try:
            return _resolve_process_group(cast(Any, held))
        except (LookupError, RuntimeError, ValueError):
            return None
    return held if isinstance(held, dist.ProcessGroup) else None


def _channel(info: OpInfo, group: dist.ProcessGroup | None, by_name: dict[str, Any]) -> str:
    """Where collectives follow one another in the same order on all ranks: a group, or two ranks of one."""
    if group is None:
        return ""
    described = _described(group)
    base = info.name.split(".")[1]
    if base not in ("send", "recv_", "isend", "irecv"):
        return described
    ranks, mine = _ranks_of(group), group.rank()
    source, target = by_name.get("src", mine), by_name.get("dst", mine)
    return f"{group.group_name} of {ranks[source]}, {ranks[target]} from {ranks[source]} tag {by_name.get('tag', 0)}"


def _storages(held: Iterable[Any]) -> set[int]:
    """The memory of all tensors in here, by what tells storages apart."""
    found: set[int] = set()
    for item in held:
        if isinstance(item, torch.Tensor):
            try:
                found.add(item.untyped_storage()._cdata)
            except (RuntimeError, NotImplementedError):
                continue  # it has no memory of its own
        elif isinstance(item, (list, tuple)):
            found |= _storages(item)
        elif isinstance(item, dict):
            found |= _storages(item.values())
    return found


# Where waiting is seen


def listen_to_work(stack: ExitStack, session: Session) -> None:
    """Record collectives, notice that they are waited for, and record what their callbacks compute, until ``stack``
    closes.
    """
    session.collectives = collectives = Collectives(session)
    for owner, name, make in (
        (Work, "wait", functools.partial(_wait, collectives)),
        (torch._C.Future, "then", functools.partial(_then, session)),
        (torch._C.Future, "add_done_callback", functools.partial(_then, session)),
    ):
        original = getattr(owner, name)
        setattr(owner, name, make(original))
        stack.callback(setattr, owner, name, original)


def _wait(collectives: Collectives, original: Callable[..., Any]) -> Callable[..., Any]:
    session = collectives.session

    @functools.wraps(original)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        session.lane.silent += 1  # some put their result where it belongs only now
        try:
            result = original(work, *args, **kwargs)
        finally:
            session.lane.silent -= 1
        if collectives.begun and not session.closed:
            collectives.waited(work)
        return result

    return wait


def _is_recording() -> bool:
    return any(isinstance(mode, Recorder) for mode in _get_current_dispatch_mode_stack())


def _then(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """Callbacks run in whatever thread completes the future: each is a lane of its own wherever it runs."""

    @functools.wraps(original)
    def then(future: Any, callback: Callable[..., Any]) -> Any:
        number, phase = session.new_lane(), session.phase()

        @functools.wraps(callback)
        def run(*args: Any) -> Any:
            lane = session.lane
            outer = lane.number, lane.lent_phase
            lane.number, lane.lent_phase = number, phase
            try:
                if session.over or _is_recording():
                    return callback(*args)
                with Recorder(session):
                    return callback(*args)
            finally:
                lane.number, lane.lent_phase = outer

        return original(future, run)

    return then
