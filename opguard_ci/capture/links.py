"""Who wrote which bytes last, and whether somebody wrote them behind our back.

Memory is followed by storage, through weak references: nothing is kept alive, so the allocator reuses memory
exactly as in a bare run. Storages that share an address (numpy, DLPack) share one region.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..trace.model import OUTSIDE, OVER, STATE

Geometry = tuple[Any, ...]

_SWEEP_AFTER = 20_000
_MAX_WRITES = 256


@dataclass(slots=True)
class _Written:
    """One write that is still visible: bytes ``lo`` to ``hi``, all of them (dense) or the elements of a strided
    view.
    """

    lo: int
    hi: int
    event: int
    geometry: Geometry | None  # None: dense


class Region:
    """The memory of one storage."""

    __slots__ = ("owned", "pointer", "seen", "state", "tainted", "version", "writes")

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer
        self.version = 0  # counts recorded writes
        self.writes: list[_Written] = []
        self.seen: dict[Geometry, int] = {}  # what the bytes of a view were when last written or read
        self.tainted: list[tuple[int, int]] = []
        self.owned = False  # written by a recorded operator at least once
        self.state = False  # holds a parameter, buffer or optimizer state

    def record_write(self, geometry: Geometry, lo: int, hi: int, dense: bool, event: int) -> None:
        """Note that ``event`` wrote these bytes."""
        self.owned = True
        self.version += 1
        if self.seen:
            self.seen = {g: v for g, v in self.seen.items() if g[1] <= lo or g[0] >= hi}
        if dense:
            if self.tainted:
                self.tainted = [piece for span in self.tainted for piece in _subtract(span, lo, hi)]
            kept: list[_Written] = []
            for old in self.writes:
                if old.hi <= lo or old.lo >= hi:
                    kept.append(old)
                elif old.geometry is None:
                    kept += [_Written(a, b, old.event, None) for a, b in _subtract((old.lo, old.hi), lo, hi)]
                elif old.lo < lo or old.hi > hi:
                    kept.append(old)
            self.writes = kept
            self.writes.append(_Written(lo, hi, event, None))
            return
        self.writes = [old for old in self.writes if old.geometry != geometry]
        if len(self.writes) >= _MAX_WRITES:
            self.writes = self.writes[-_MAX_WRITES // 2 :]
        self.writes.append(_Written(lo, hi, event, geometry))

    def writers(self, geometry: Geometry, lo: int, hi: int, dense: bool) -> tuple[int, ...]:
        """The events that last wrote bytes of this view, oldest first."""
        writes = self.writes
        if len(writes) == 1:
            only = writes[0]
            return (only.event,) if only.lo < hi and lo < only.hi else ()
        found: list[int] = []
        for old in reversed(writes):
            if old.lo < hi and lo < old.hi:
                found.append(old.event)
                covers = (
                    old.lo <= lo and hi <= old.hi if old.geometry is None else (not dense and old.geometry == geometry)
                )
                if covers:
                    break
        return tuple(dict.fromkeys(reversed(found)))

    def is_tainted(self, lo: int, hi: int) -> bool:
        """Whether bytes of this span were changed by nobody we saw."""
        return any(a < hi and lo < b for a, b in self.tainted)


def _subtract(span: tuple[int, int], lo: int, hi: int) -> list[tuple[int, int]]:
    """What is left of ``span`` without ``lo`` to ``hi``."""
    a, b = span
    if b <= lo or a >= hi:
        return [span]
    return [piece for piece in ((a, min(b, lo)), (max(a, hi), b)) if piece[0] < piece[1]]


class Memory:
    """All storages that the run has touched."""

    def __init__(self) -> None:
        # By the identity of the storage, which stays its own while we hold a weak reference to it.
        self._regions: dict[int, tuple[Region, StorageWeakRef]] = {}
        self._by_pointer: dict[int, tuple[Region, StorageWeakRef]] = {}

    def region(self, tensor: torch.Tensor) -> Region | None:
        """The region of a strided tensor with memory; None for others."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse, opaque, functional wrappers
            return None
        entry = self._regions.get(storage._cdata)
        if entry is not None:
            return entry[0]
        return self._adopt(storage)

    def _adopt(self, storage: torch.UntypedStorage) -> Region | None:
        if storage.device.type == "meta":
            return None
        if len(self._regions) % _SWEEP_AFTER == _SWEEP_AFTER - 1:
            self.sweep()
        pointer, weak = storage.data_ptr(), StorageWeakRef(storage)
        region = Region(pointer)
        if pointer:
            other = self._by_pointer.get(pointer)
            if other is not None and not other[1].expired():
                region = other[0]  # another storage object over the same memory
            else:
                self._by_pointer[pointer] = (region, weak)
        self._regions[storage._cdata] = (region, weak)
        return region

    def sweep(self) -> None:
        """Forget storages that are gone."""
        self._regions = {key: entry for key, entry in self._regions.items() if not entry[1].expired()}
        self._by_pointer = {key: entry for key, entry in self._by_pointer.items() if not entry[1].expired()}

    def read(self, tensor: torch.Tensor, value: int) -> tuple[tuple[int, ...], int]:
        """Note that these bytes were read as ``value``; their last writers and the flags of the read."""
        region = self.region(tensor)
        if region is None:
            return (), OUTSIDE
        geometry, lo, hi, dense = extent(tensor)
        writers = region.writers(geometry, lo, hi, dense)
        flags = STATE if region.state else 0
        before = region.seen.get(geometry)
        if before is not None and before != value and region.owned:
            region.tainted.append((lo, hi))
        region.seen[geometry] = value
        if not writers:
            flags |= OUTSIDE
        elif region.tainted and region.is_tainted(lo, hi):
            flags |= OVER
        return writers, flags

    def write(self, tensor: torch.Tensor, value: int, event: int) -> None:
        """Note that ``event`` left ``value`` (0: undefined) in these bytes."""
        region = self.region(tensor)
        if region is None:
            return
        geometry, lo, hi, dense = extent(tensor)
        region.record_write(geometry, lo, hi, dense, event)
        if value:
            region.seen[geometry] = value

    def see(self, tensor: torch.Tensor, value: int) -> None:
        """Note what a view shows, without a write."""
        region = self.region(tensor)
        if region is not None:
            region.seen[extent(tensor)[0]] = value

    def mark_state(self, tensor: torch.Tensor) -> None:
        """Note that this memory holds state of the training."""
        region = self.region(tensor)
        if region is not None:
            region.state = True


def extent(tensor: torch.Tensor) -> tuple[Geometry, int, int, bool]:
    """(geometry, first byte, last byte + 1, whether all bytes between belong to it) within the storage."""
    size = tensor.itemsize
    lo = int(tensor.storage_offset()) * size
    if tensor.is_contiguous():
        hi = lo + int(tensor.nbytes)
        return (lo, hi, tensor.dtype), lo, hi, True
    shape, strides = tensor.shape, tensor.stride()
    hi = lo + size
    for length, stride in zip(shape, strides, strict=True):
        if length == 0:
            hi = lo
            break
        hi += int((length - 1) * stride * size)
    dense = hi - lo == tensor.nbytes and 0 not in strides
    return (lo, hi, tensor.dtype, shape, strides), lo, hi, dense
