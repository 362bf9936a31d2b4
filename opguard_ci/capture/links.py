"""Which memory a tensor lies in, and what recorded operators did to it.

Memory is followed by storage, through weak references: nothing is kept alive, so the allocator reuses memory
exactly as in a bare run. Storages that share memory (numpy, DLPack) share one region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from .fingerprint.strides import layout_of
from .region import Geometry, Region
from .sparse import parts

_SWEEP_AFTER: Final = 20_000
_BOUNDLESS: Final = 1 << 62
"""Size of a region that storages share without one holding all of it: no write is known to cover it."""

_address: Callable[[torch.Tensor], int] = getattr(torch._C, "_data_address")  # noqa: B009 - not in its stubs
# of the storage's first byte; data_ptr() would copy the memory of a lazy clone

_is_expired: Callable[[int], Any] = torch.UntypedStorage._expired
_free: Callable[[int], Any] = torch.UntypedStorage._free_weak_ref

Place = tuple[Region, Geometry, int, int, bool]
"""Where the elements of a tensor lie: bytes lo to hi of a region, and whether all of them (dense)."""

SHOWN, ALLOCATED, LEFT, GROWN = range(4)
"""What a call did to the memory of an output or an argument."""

_Known = tuple[Region, int, int]  # a weak reference to the storage, and where in the region it begins


class Memory:
    """All storages that the run has touched. The session's lock guards it."""

    def __init__(self) -> None:
        # By the identity of the storage, which stays its own while we hold a weak reference to it.
        self.known: dict[int, _Known] = {}
        self._by_pointer: dict[int, _Known] = {}
        self._sweep_at = _SWEEP_AFTER

    def place(self, tensor: torch.Tensor, made: bool = False) -> Place | None:
        """Where a tensor lies, a sparse one where its values do; None for those without memory of their own (meta,
        wrappers).

        ``made``: a recorded operator has just handed it out.
        """
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return self._sparse(tensor, made)
        known = self.known.get(storage._cdata) or self.adopt(tensor, storage, made)
        if known is None:
            return None
        size = tensor.itemsize
        lo = int(tensor.storage_offset()) * size + known[2]
        if tensor.is_contiguous():
            hi = lo + int(tensor.nbytes)
            if tensor.is_neg() or tensor.is_conj():  # the same bytes show something else
                return known[0], (lo, hi, (tensor.dtype, tensor.is_neg(), tensor.is_conj())), lo, hi, True
            return known[0], (lo, hi, tensor.dtype), lo, hi, True
        return strided(tensor, known[0], lo)

    def _sparse(self, tensor: torch.Tensor, made: bool) -> Place | None:
        """The place of a sparse tensor's values, as something that is another once its indices are rewritten."""
        found = parts(tensor)
        places = [self.place(part, made) for part in (found[0], *found[1])] if found is not None else [None]
        if places[0] is None:
            return None
        region, geometry, lo, hi, dense = places[0]
        indices = [(place[0].identity, place[0].version, place[1]) for place in places[1:] if place is not None]
        return region, (*geometry, tensor.layout, *indices), lo, hi, dense

    def adopt(self, tensor: torch.Tensor, storage: torch.UntypedStorage, made: bool) -> _Known | None:
        """The entry of a storage that is met for the first time; None if it holds no bytes."""
        if storage.device.type == "meta":
            return None
        if len(self.known) >= self._sweep_at:
            self.sweep()
        pointer = _address(tensor)
        weak: Any = storage._weak_ref()
        shared = self._sharing(pointer, storage.nbytes(), weak, made) if pointer else None
        if shared is None:
            foreign = not made and not storage.resizable()  # numpy's, DLPack's, a mapped file, a worker's batch
            shared = (Region(pointer, storage.nbytes(), foreign=foreign), weak, 0)
            if pointer:
                self._by_pointer[pointer] = shared
        self.known[storage._cdata] = shared
        return shared

    def _sharing(self, pointer: int, nbytes: int, weak: int, made: bool) -> _Known | None:
        """The entry of another storage object over memory that we know."""
        other = self._by_pointer.get(pointer)
        if other is not None and _lies_at(other[1], pointer):
            return (other[0], weak, other[2])
        if made:  # fresh from the allocator
            return None
        for region, alive, shift in self._by_pointer.values():
            begin = region.pointer + shift
            if (
                begin < pointer + nbytes
                and pointer < begin + region.nbytes
                and region.nbytes < _BOUNDLESS
                and _lies_at(alive, begin)
            ):
                if pointer < region.pointer or pointer + nbytes > region.pointer + region.nbytes:
                    region.nbytes = _BOUNDLESS
                return (region, weak, pointer - region.pointer)
        return None

    def resized(self, tensor: torch.Tensor) -> None:
        """An operator may have moved the memory of this tensor's storage."""
        storage = tensor.untyped_storage()
        known = self.known.get(storage._cdata)
        if known is None:
            return
        region, pointer = known[0], _address(tensor)
        if region.pointer and self._by_pointer.get(region.pointer) is known:
            del self._by_pointer[region.pointer]
        region.pointer, region.nbytes = pointer, storage.nbytes()
        if pointer:
            self._by_pointer[pointer] = known

    def sweep(self) -> None:
        """Forget storages that are gone."""
        gone = {key: entry for key, entry in self.known.items() if _is_expired(entry[1])}
        for key in gone:
            del self.known[key]
        self._by_pointer = {key: entry for key, entry in self._by_pointer.items() if not _is_expired(entry[1])}
        for _, weak, _ in gone.values():  # last: until then no other storage can have its identity
            _free(weak)
        self._sweep_at = 2 * len(self.known) + _SWEEP_AFTER

    def close(self) -> None:
        """Forget all."""
        for _, weak, _ in self.known.values():
            _free(weak)
        self.known, self._by_pointer = {}, {}

    def __len__(self) -> int:
        return len(self.known)


def _lies_at(weak: int, pointer: int) -> bool:
    """Whether a storage is still alive and has not been moved by a resize."""
    storage = torch.UntypedStorage._new_with_weak_ptr(weak)
    return storage is not None and storage.data_ptr() == pointer


def strided(tensor: torch.Tensor, region: Region, lo: int) -> Place:
    """The place of a tensor that begins at byte ``lo`` of a region."""
    size, shape, strides = tensor.itemsize, tensor.shape, tensor.stride()
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():  # empty, or of one element
        return region, (lo, lo + int(tensor.nbytes), tensor.dtype), lo, lo + int(tensor.nbytes), True
    hi = lo + size
    for length, stride in zip(shape, strides, strict=True):
        if length == 0:
            hi = lo
            break
        hi += (length - 1) * stride * size
    dense = hi - lo == tensor.nbytes and _is_permuted(shape, strides)
    lazy = (tensor.is_neg(), tensor.is_conj())
    layout = layout_of(shape, strides)
    return region, (lo, hi, tensor.dtype, *layout, *(lazy if any(lazy) else ())), lo, hi, dense


def _is_permuted(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a view has each element of its span once, if in another order. Spans of as many bytes may overlap too."""
    expected = 1
    for stride, length in sorted(zip(strides, shape, strict=True)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def read(place: Place, value: int) -> tuple[tuple[int, ...], int]:
    """Note that these bytes were read as ``value``; their last writers and the flags of the read."""
    region, geometry, lo, hi, dense = place
    return region.read(geometry, lo, hi, dense, value)


def write(place: Place, value: int, event: int) -> None:
    """Note that ``event`` left ``value`` (0: undefined) in these bytes."""
    region, geometry, lo, hi, dense = place
    region.write(geometry, lo, hi, dense, value, event)


def allocate(place: Place, garbage: int, event: int) -> None:
    """Note that ``event`` made these bytes without writing them; ``garbage`` is what happened to be there."""
    region, geometry, lo, hi, dense = place
    region.allocate(geometry, lo, hi, dense, garbage, event)


def leave(change: int, place: Place, value: int, event: int) -> None:
    """Note what ``event`` did to these bytes, and that ``value`` is there now."""
    if change == LEFT:
        write(place, value, event)
    elif change == ALLOCATED:
        allocate(place, value, event)
    elif change == GROWN:
        place[0].record_write(place[1], place[2], place[3], True, event)
    elif value:
        place[0].remember(place[1], value)
