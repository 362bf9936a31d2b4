"""One look at a tensor: its value, its description, and where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ..trace.model import NO_VALUE, NULL, Interner
from .fingerprint import cpu
from .fingerprint.cuda import DeviceFingerprints
from .fingerprint.quiet import Unhashable, quiet
from .fingerprint.tensors import address, is_on_device, is_on_host, value, values
from .links import Memory, Place, strided

Look = tuple[int, int, Place | None, Any]
"""Value (0: none; below 0: handle of one on a device), spec, place (None: no memory of its own), and how to look at
the same bytes again (None: not without the tensor; BY_LINKS: they were not looked at).
"""

BY_LINKS: Final = ()

_keys = torch._C._dispatch_keys
_digest: Final[Callable[[Any], int]] = cpu.digest


class Looks:
    """Looks at tensors. The session's lock guards it."""

    def __init__(
        self,
        specs: Interner,
        devices: DeviceFingerprints,
        unhashed: Callable[[str, Unhashable], None],
        ask_for_constants: Callable[[int, torch.Tensor], None],
    ) -> None:
        """``unhashed`` is told what has no value, ``ask_for_constants`` of a new spec on a device."""
        self.memory = Memory()
        self.assumes = False
        """Level ``op``: ``assume`` may be asked for, and torch's version counters are followed."""
        self._devices, self._unhashed, self._ask_for_constants = devices, unhashed, ask_for_constants
        self._intern = specs
        self._specs: dict[tuple[Any, ...], int] = {}
        self._constants: dict[int, frozenset[int] | None] = {}  # by spec; None: all values are weak
        # By dtype, shape and dispatch keys of ordinary tensors of the host: spec, bytes, bytes of an element, salt, and
        # a function from an address to a buffer.
        self._kinds: dict[tuple[Any, ...], tuple[int, int, int, int, Any]] = {}
        self._on_host: dict[int, bool] = {}

    def at(
        self, tensor: torch.Tensor, op: str, made: bool = False, like: Look | None = None, assume: bool = False
    ) -> Look:
        """Look at one tensor of a call of ``op``.

        ``made``: the call has just handed it out. ``like``: what was seen of a tensor that it may be a view of; if it
        shows the same bytes they are not hashed again. ``assume``: take the value that the links say these bytes have,
        if they say one (level ``op``).
        """
        keys = _keys(tensor).raw_repr()
        on_host = self._on_host.get(keys)
        if on_host is None:
            on_host = self._on_host[keys] = is_on_host(tensor)
        if not on_host:
            return self._value(tensor, op), self.spec(tensor), self.memory.place(tensor, made), None
        dtype, shape = tensor.dtype, tensor.shape
        kind = self._kinds.get((dtype, shape, keys))
        if kind is None:
            kind = self._kinds[dtype, shape, keys] = self._kind(tensor)
        spec, nbytes, size, salt, buffer = kind
        storage = tensor.untyped_storage()
        known = self.memory.known.get(storage._cdata) or self.memory.adopt(tensor, storage, made)
        offset = int(tensor.storage_offset()) * size
        if known is None or not nbytes or not tensor.is_contiguous():
            place = None if known is None else strided(tensor, known[0], offset + known[2])
            if self.assumes and place is not None and nbytes and not made:
                found = _assumed(place, tensor, storage)
                if assume and found:
                    return found, spec, place, BY_LINKS
            return self._value(tensor, op), spec, place, None
        lo = offset + known[2]
        hi = lo + nbytes
        geometry = (lo, hi, dtype)
        place = (known[0], geometry, lo, hi, True)
        if like is not None and like[2] is not None and like[2][0] is known[0] and like[2][1] == geometry:
            return like[0], spec, place, like[3]
        if self.assumes and not made:
            found = _assumed(place, tensor, storage)
            if assume and found:
                return found, spec, place, BY_LINKS
        pointer = address(tensor)
        if not pointer:
            return self._value(tensor, op), spec, place, None
        bytes_ = buffer(pointer + offset)
        return (_digest(bytes_) ^ salt) or 1, spec, place, (bytes_, salt)

    def all(self, tensors: list[torch.Tensor], op: str, made: bool = False, assume: bool = False) -> list[Look]:
        """Look at the tensors of a call; those on a device share what they can."""
        if self._devices.used and len(tensors) > 1:
            try:
                found = values(tensors, self._devices)
            except (Unhashable, RuntimeError, MemoryError):  # one of them, or no memory: see below which
                found = [self._value(tensor, op) for tensor in tensors]
            return [
                (one, self.spec(t), self.memory.place(t, made), None) for one, t in zip(found, tensors, strict=True)
            ]
        if len(tensors) == 1:
            return [self.at(tensors[0], op, made, None, assume)]
        return [self.at(tensor, op, made, None, assume) for tensor in tensors]

    @staticmethod
    def again(look: Look) -> int:
        """What is now where a tensor of the host was looked at. Its memory must still be there."""
        bytes_, salt = look[3]
        return (_digest(bytes_) ^ salt) or 1

    def beside(self, tensor: torch.Tensor, made: bool = False) -> Look:
        """Look where a tensor lies, not at its content."""
        return NO_VALUE, self.spec(tensor), self.memory.place(tensor, made), None

    def _value(self, tensor: torch.Tensor, op: str) -> int:
        try:
            return value(tensor, self._devices)
        except Unhashable as reason:
            self._unhashed(op, reason)
            return NO_VALUE

    def _kind(self, tensor: torch.Tensor) -> tuple[int, int, int, int, Any]:
        nbytes = int(tensor.nbytes)
        return self.spec(tensor), nbytes, tensor.itemsize, cpu.salt(tensor.dtype), cpu.buffer(nbytes)

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
            found = self._specs[key] = self._intern(text)
            self._constants[found] = frozenset()
            if tensor.numel() <= 4 or tensor.dtype in cpu.EXACT_INTEGERS:
                self._constants[found] = None
            elif is_on_device(tensor):
                self._ask_for_constants(found, tensor)
            elif tensor.is_cpu and tensor.layout is torch.strided:
                self._constants[found] = cpu.constants(tensor.dtype, tensor.nbytes)
        return found

    def learn_constants(self, spec: int, constants: frozenset[int]) -> None:
        """The values of constant tensors of a spec are known now."""
        self._constants[spec] = constants

    def is_weak(self, spec: int, found: int) -> bool:
        """Whether a value occurs everywhere and so proves nothing (verdict.md, rule 3)."""
        constants = self._constants[spec]
        return constants is None or found in constants


def _assumed(place: Place, tensor: torch.Tensor, storage: torch.UntypedStorage) -> int:
    """The value that the links say a tensor has; 0 if they say none, or if somebody else may have written it."""
    if not storage.resizable():  # numpy has it, or another process
        return 0
    try:
        version = tensor._version
    except RuntimeError:  # of inference mode: has none
        version = NULL
    return place[0].assumed(place[1], version)


def _nested_shape(tensor: torch.Tensor) -> tuple[str, ...]:
    """The sizes of the parts of a nested tensor, which has no shape."""
    if tensor.layout is torch.jagged:
        return tuple(map(str, tensor.shape))
    with quiet():
        return tuple("x".join(map(str, size)) for size in tensor._nested_tensor_size().tolist())
