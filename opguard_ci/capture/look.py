"""One look at a tensor: its value, its description, and where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ..trace.model import NO_VALUE, NULL, Interner
from .ahead import will_be_known
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
LINKED: Final = -1 << 62
"""The value of a look BY_LINKS where links are worked out late: what they will say. Stands for no handle."""

_keys = torch._C._dispatch_keys
_digest: Final[Callable[[Any], int]] = cpu.digest


class Looks:
    """Looks at tensors. The session's lock guards it."""

    def __init__(
        self,
        memory: Memory,
        specs: Interner,
        devices: DeviceFingerprints,
        unhashed: Callable[[str, Unhashable], None],
        ask_for_constants: Callable[[int, torch.Tensor], None],
    ) -> None:
        """``unhashed`` is told what has no value, ``ask_for_constants`` of a new spec on a device."""
        self.memory = memory
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
        # Likewise where values come late: by dispatch keys, dtype and shape.
        self._ordinary: dict[int, dict[tuple[Any, ...], tuple[int, int, int]]] = {}

    def at(
        self,
        tensor: torch.Tensor,
        op: str,
        made: bool = False,
        assume: bool = False,
        base: tuple[torch.Tensor, Look] | None = None,
    ) -> Look:
        """Look at one tensor of a call of ``op``.

        ``made``: the call has just handed it out. ``assume``: take the value that the links say these bytes have, if
        they say one (level ``op``). ``base``: what the tensor may be a view of, and what was seen of that; if it shows
        the same bytes they are not hashed again.
        """
        keys = _keys(tensor).raw_repr()
        on_host = self._on_host.get(keys)
        if on_host is None:
            on_host = self._on_host[keys] = is_on_host(tensor)
        if not on_host:
            look = self._unread(tensor, made, assume, base)
            return look if look[0] else (self._value(tensor, op), *look[1:])
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
            if base is not None and place is not None and nbytes and _shows_the_same(place, base[1]):
                return base[1][0], spec, place, base[1][3]
            if self.assumes and place is not None and nbytes and not made:
                found = self._assumed(place, tensor if base is None else base[0], storage)
                if assume and found:
                    return found, spec, place, BY_LINKS
            return self._value(tensor, op), spec, place, None
        lo = offset + known[2]
        hi = lo + nbytes
        geometry = (lo, hi, dtype)
        place = (known[0], geometry, lo, hi, True)
        if base is not None and _shows_the_same(place, base[1]):
            return base[1][0], spec, place, base[1][3]
        if self.assumes and not made:
            found = self._assumed(place, tensor if base is None else base[0], storage)
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
            return self._together(tensors, op, made, assume)
        if len(tensors) == 1:
            return [self.at(tensors[0], op, made, assume)]
        return [self.at(tensor, op, made, assume) for tensor in tensors]

    def _together(self, tensors: list[torch.Tensor], op: str, made: bool, assume: bool) -> list[Look]:
        looks = [self._unread(tensor, made, assume) for tensor in tensors]
        left = [number for number, look in enumerate(looks) if not look[0]]
        found = self.values_of([tensors[number] for number in left], op)
        for number, one in zip(left, found, strict=True):
            looks[number] = (one, *looks[number][1:])
        return looks

    def values_of(self, tensors: list[torch.Tensor], op: str) -> list[int]:
        """The values of tensors of one call, or handles; 0, and a note, for one that has none."""
        try:
            return values(tensors, self._devices)
        except (Unhashable, RuntimeError, MemoryError):  # one of them, or no memory: see below which
            return [self._value(tensor, op) for tensor in tensors]

    def _unread(
        self, tensor: torch.Tensor, made: bool, assume: bool, base: tuple[torch.Tensor, Look] | None = None
    ) -> Look:
        """Look at a tensor without reading it: its value is 0 unless ``base`` or the links say it. See ``at``."""
        keys = _keys(tensor).raw_repr()
        kinds = self._ordinary.get(keys)
        if kinds is None and (is_on_device(tensor) or is_on_host(tensor)):
            kinds = self._ordinary[keys] = {}
        if kinds is None:
            return NO_VALUE, self.spec(tensor), self.memory.place(tensor, made), None
        key = (tensor.dtype, tensor.shape)
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = (self.spec(tensor), tensor.nbytes, tensor.itemsize)
        spec, nbytes, size = kind
        storage = tensor.untyped_storage()
        known = self.memory.known.get(storage._cdata) or self.memory.adopt(tensor, storage, made)
        if known is None:
            return NO_VALUE, spec, None, None
        lo = int(tensor.storage_offset()) * size + known[2]
        if tensor.is_contiguous():
            place: Place = (known[0], (lo, lo + nbytes, key[0]), lo, lo + nbytes, True)
        else:
            place = strided(tensor, known[0], lo)
        if made or not nbytes:
            return NO_VALUE, spec, place, None
        if base is not None and _shows_the_same(place, base[1]):
            return base[1][0], spec, place, base[1][3]
        if self.assumes:
            found = self._assumed(place, tensor if base is None else base[0], storage)
            if assume and found:
                return found, spec, place, BY_LINKS
        return NO_VALUE, spec, place, None

    def _assumed(self, place: Place, tensor: torch.Tensor, storage: torch.UntypedStorage) -> int:
        """The value that the links say a tensor has; 0 if they say none, or if somebody else may have written it.

        ``tensor``: has the version counter of these bytes. A view that an operator has just handed out gets that of
        its base later.
        """
        if not storage.resizable():  # numpy has it, or another process
            return 0
        try:
            version = tensor._version
        except RuntimeError:  # of inference mode: has none
            version = NULL
        if not self._devices.used:
            return place[0].assumed(place[1], version)
        return LINKED if will_be_known(place[0], place[1], version) else NO_VALUE

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


def _shows_the_same(place: Place, look: Look) -> bool:
    return look[2] is not None and look[2][0] is place[0] and look[2][1] == place[1]


def _nested_shape(tensor: torch.Tensor) -> tuple[str, ...]:
    """The sizes of the parts of a nested tensor, which has no shape."""
    if tensor.layout is torch.jagged:
        return tuple(map(str, tensor.shape))
    with quiet():
        return tuple("x".join(map(str, size)) for size in tensor._nested_tensor_size().tolist())
