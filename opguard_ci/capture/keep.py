"""Keeps the tensors of chosen events of a run on disk, and ends a run of one rank after the last of them.

An event is named by its place, which is the same in every run that does the same: the n-th operator call of a lane, or
the n-th contract value, both counted from 0 over the whole run. Views and allocations do not count: how many of them a
loader makes depends on which of its workers is faster. Nor do collectives, which end when somebody waits for them. What
is kept of event k are ``<k>-before.safetensors`` (a call's tensor arguments, or the contract value),
``<k>-after.safetensors`` (outputs, and arguments that the call changed) and its entry in ``kept.json``;
``opguard_ci.evidence.kept`` reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ..trace.model import KINDS
from .call import Call
from .fingerprint.quiet import quiet
from .steps import enough
from .text import SCRATCH

if TYPE_CHECKING:
    from .session import Session

KEPT: Final = "kept.json"
UNCOUNTED: Final = (KINDS.index("view"), KINDS.index("alloc"), KINDS.index("collective"))
"""Kinds of events that have no place."""
_NATIVE: Final = frozenset(
    ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
"""Dtypes that every release of safetensors knows; others are kept as bytes, with their name beside."""


def keep(session: Session, plan: Path, rank: int | None) -> None:
    """Have a session keep what a plan file names: ``{"folder": …, "calls": [[lane, n], …], "entries": [n, …]}``.

    ``rank``: which of several ranks this is. The plan's ``"rank"`` keeps, and goes on to its end: the others would
    wait for it. With ``"live"`` nothing is kept: a debugger stops there (see ``capture.live``).
    """
    wanted = json.loads(plan.read_text())
    if rank is not None and rank != wanted.get("rank", 0):
        return
    if "live" in wanted:
        from .live import go_live

        go_live(session, wanted)
        return
    calls = {(*place,) for place in wanted["calls"]}
    session.keeper = Keeper(session, Path(wanted["folder"]), calls, wanted["entries"])
    session.keeper.is_alone = rank is None
    session.call_type = KeptCall


class Keeper:
    """Counts events, and keeps those that are wanted."""

    def __init__(self, session: Session, folder: Path, calls: set[tuple[int, ...]], entries: list[int]) -> None:
        self._session = session
        self._folder = folder
        self._calls, self._entries = calls, set(entries)
        self._num_calls: defaultdict[int, int] = defaultdict(int)
        self._num_entries = 0
        self._found: list[dict[str, Any]] = []
        self.is_alone = True
        """Whether no other rank would wait for this one if it ended."""

    def place_of_next(self) -> tuple[int, int] | None:
        """The place of the call that starts now in this thread, if it is wanted."""
        lane = self._session.lane_number()
        place = (lane, self._num_calls[lane])
        return place if place in self._calls else None

    def saw_call(self, kept: KeptEvent | None) -> None:
        """A call ended; ``kept`` is what was kept of it."""
        self._num_calls[self._session.lane_number()] += 1
        if kept is not None:
            self._calls.discard((*kept.entry["call"],))
            self._add(kept)

    def saw_entry(self, held: object) -> None:
        """A contract value was recorded."""
        number, self._num_entries = self._num_entries, self._num_entries + 1
        if number not in self._entries:
            return
        kept = self.begin({"entry": number})
        if isinstance(held, torch.Tensor):
            kept.save("before", {"value": held})
        else:
            kept.entry["text"] = repr(held)
        self._entries.discard(number)
        self._add(kept)

    def saw_error(self, error: BaseException) -> None:
        """The target ended by this error."""

    def begin(self, entry: dict[str, Any]) -> KeptEvent:
        """A new event to keep."""
        return KeptEvent(self._folder, len(self._found), entry)

    def _add(self, kept: KeptEvent) -> None:
        self._found.append(kept.entry)
        (self._folder / KEPT).write_text(json.dumps(self._found))
        if self.is_alone and not self._calls and not self._entries:
            self._session.stopped = True
            self._session.end()
            raise enough()


class KeptEvent:
    """One event on its way to disk."""

    def __init__(self, folder: Path, number: int, entry: dict[str, Any]) -> None:
        self._folder, self._number = folder, number
        self.entry: dict[str, Any] = {**entry, "number": number, "tensors": {}, "problems": {}}

    def save(self, when: str, tensors: dict[str, torch.Tensor]) -> None:
        """Write tensors to the event's file; what cannot be written is named with its reason."""
        from safetensors.torch import save_file

        found: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            plain = contents(tensor)
            if isinstance(plain, str):
                self.entry["problems"][name] = plain
                continue
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.entry["tensors"][name] = {
                "file": f"{self._number}-{when}.safetensors",
                "dtype": dtype,
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "align": tensor.data_ptr() % 64,
                "device": tensor.device.type,
                "sha256": _digest(plain),
            }
            found[name] = plain if dtype in _NATIVE else plain.reshape(-1).view(torch.uint8)
        with quiet():
            save_file(_apart(found), self._folder / f"{self._number}-{when}.safetensors")

    def changed(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether a tensor that was saved under this name holds other bytes now."""
        before = self.entry["tensors"].get(name)
        if before is None:
            return False
        plain = contents(tensor)
        return not isinstance(plain, str) and _digest(plain) != before["sha256"]


class KeptCall(Call):
    """A call whose tensors are kept if they are wanted."""

    __slots__ = ("_counts", "_kept")

    def before(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Also save what the call is about to read."""
        super().before(args, options)
        keeper = self._session.keeper
        assert keeper is not None
        self._counts = self.info.kind not in UNCOUNTED
        place = keeper.place_of_next() if self._counts else None
        self._kept: KeptEvent | None = None
        if place is None:
            return
        tensors = {f"input {n}": tensor for n, tensor in enumerate(self._given.tensors)}
        kept = self._kept = keeper.begin({"call": place, "op": self.info.name, "text": self.text})
        if self._generator is not None:
            tensors["generator"] = self._generator.get_state()
            kept.entry["generator"] = self._generator.device.type
        kept.save("before", tensors)
        kept.entry["settings"] = {
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        numbers = iter(range(len(self._given.tensors)))
        kept.entry["args"] = [encode(each, numbers) for each in args]
        kept.entry["kwargs"] = {name: encode(each, numbers) for name, each in options.items()}

    def after(self, result: Any) -> None:
        """Also save what the call left."""
        kept = self._kept
        if kept is not None:
            kept.save("after", self._left(kept, result))
        super().after(result)
        if self._counts:
            assert self._session.keeper is not None
            self._session.keeper.saw_call(kept)

    def _left(self, kept: KeptEvent, result: Any) -> dict[str, torch.Tensor]:
        given = list(zip(self.numbers, self._given.tensors, self._given.marks, strict=True))
        written = [(n, tensor) for n, tensor, mark in given if mark and mark != SCRATCH]
        hidden = [(n, tensor) for n, tensor, mark in given if not mark and kept.changed(f"input {n}", tensor)]
        in_place = {id(tensor) for _, tensor in written}
        outputs = [t for t in _flat(result) if isinstance(t, torch.Tensor)]
        found = {f"output {slot}": tensor for slot, tensor in enumerate(outputs) if id(tensor) not in in_place}
        return {**found, **{f"written {n}": tensor for n, tensor in (*written, *hidden)}}


def contents(tensor: torch.Tensor) -> torch.Tensor | str:
    """A tensor's elements in the memory of the host, in logical order; a reason where it has none that can be saved."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"{type(tensor).__qualname__} is a tensor subclass"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"its layout is {'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_quantized:
        return "it is quantised"
    if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "it has no content of its own"
    try:
        with quiet():
            return tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    except (RuntimeError, NotImplementedError) as error:
        return f"it cannot be read: {(str(error).splitlines() or [''])[0][:200]}"


def encode(value: Any, numbers: Any) -> Any:
    """An argument as JSON; tensors by number, in the order of ``numbers``; objects by the name of their type."""
    if isinstance(value, torch.Tensor):
        return {"tensor": next(numbers)}
    if isinstance(value, (list, tuple)):
        return [encode(item, numbers) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, complex)):
        return {type(value).__name__: repr(value)}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value)}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, torch.Generator):
        return {"generator": value.device.type}
    return {"object": type(value).__qualname__}


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [item for part in result for item in _flat(part)]
    return [result]


def _digest(plain: torch.Tensor) -> str:
    with quiet():
        return hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def _apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors in memory of their own each, as safetensors wants them."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return found
