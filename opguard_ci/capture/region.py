"""The memory of one storage: its last writers, byte by byte, and what was last seen in it. Pure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..trace.model import OUTSIDE, OVER, STATE

Geometry = tuple[Any, ...]
"""(lo, hi, dtype) of a contiguous view, in bytes; with shape and strides, in elements and as few dimensions as will do,
of any other; and what else tells two views of the same bytes apart.
"""

_MAX_WRITES: Final = 256
_MAX_SEEN: Final = 4096
_MAX_TAINTED: Final = 64
_OVERLAP_WORK: Final = 10_000
"""How much numpy may search for a common byte of two strided views before they count as overlapping."""


_Written = tuple[int, int, tuple[int, ...], Geometry | None]
"""Writes that are still visible: bytes lo to hi, by which events, the elements of which strided view (None: all)."""


class Region:
    """Bytes by offset. ``foreign``: made by nobody we saw, such as numpy or a file's mapping."""

    __slots__ = (
        "ahead",
        "foreign",
        "fresh",
        "nbytes",
        "owned",
        "pinned",
        "pointer",
        "seen",
        "state",
        "tainted",
        "version",
        "writes",
        "writing",
    )

    def __init__(self, pointer: int = 0, nbytes: int = 0, *, foreign: bool = False) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.foreign = foreign
        self.fresh = False  # allocated, and not yet written by a recorded operator
        self.version = 0  # counts recorded writes
        self.writing = 0  # operators that are writing it now
        self.writes: list[_Written] = []
        self.seen: dict[Geometry, int] = {}  # what the bytes of a view were when last written or read
        self.pinned: dict[Geometry, int] = {}  # torch's version counter when they were (level op)
        self.tainted: list[tuple[int, int]] | tuple[()] = ()
        self.owned = False  # written by a recorded operator at least once
        self.state = False  # holds a parameter, buffer or optimizer state
        self.ahead: Region | None = None  # see capture.ahead

    @property
    def identity(self) -> int:
        """A number that no other region has."""
        return id(self)

    def remember(self, geometry: Geometry, value: int) -> None:
        """Note what the bytes of a view are."""
        seen = self.seen
        if len(seen) >= _MAX_SEEN and geometry not in seen:
            for old in list(seen)[: _MAX_SEEN // 2]:
                del seen[old]
            self.pinned = {}
        seen[geometry] = value

    def seen_as(self, geometry: Geometry) -> int:
        """What the bytes of a view were when last written or read; 0 if they were written in pieces since."""
        return self.seen.get(geometry, 0)

    def forget(self, lo: int, hi: int) -> None:
        """Nothing is known any more of views that share bytes with this span."""
        self.seen = {g: v for g, v in self.seen.items() if g[1] <= lo or g[0] >= hi}

    def assumed(self, geometry: Geometry, version: int) -> int:
        """What the bytes of a view must still be, if nobody but recorded operators wrote them; 0 if that is not sure.

        ``version``: torch's version counter of the tensor, which counts writes that are not recorded too. It moves
        when a recorded write is over, and so is taken as it is by the first look after one.
        """
        pinned = self.pinned.get(geometry, version)
        self.pinned[geometry] = version
        if pinned != version or not self.owned or self.writing or self.fresh or self.foreign or self.tainted:
            return 0
        return self.seen.get(geometry, 0)

    def changed(self, lo: int, hi: int) -> None:
        """Note that these bytes changed though nobody we saw wrote them.

        Memory of somebody else's is theirs to refill, and so is memory that we saw allocated and nothing more: what
        they put there comes from outside. Other memory, and what holds the state of the training, was overwritten.
        """
        if (self.foreign or self.fresh) and not self.state:
            self.foreign = True
            self.writes = [piece for old in self.writes for piece in _beside(old, lo, hi)]
            return
        self.tainted = [*self.tainted, (lo, hi)]
        if len(self.tainted) > _MAX_TAINTED:
            self.tainted = [(min(a for a, _ in self.tainted), max(b for _, b in self.tainted))]

    def record_write(self, geometry: Geometry, lo: int, hi: int, dense: bool, event: int) -> None:
        """Note that ``event`` wrote these bytes."""
        self.owned = True
        self.version += 1
        if self.pinned:
            self.pinned = {}
        if self.seen:
            if lo <= 0 and hi >= self.nbytes:
                self.seen = {}
            else:
                self.forget(lo, hi)
        if not dense:
            self.writes = [old for old in self.writes if old[3] != geometry]
            self.writes.append((lo, hi, (event,), geometry))
        else:
            if self.tainted:
                self.tainted = [piece for span in self.tainted for piece in _subtract(span, lo, hi)]
            written: _Written = (lo, hi, (event,), None)
            if not self.writes or (lo <= 0 and hi >= self.nbytes):
                self.writes = [written]
                return
            self.writes = [piece for old in self.writes for piece in _beside(old, lo, hi)]
            self.writes.append(written)
        if len(self.writes) > _MAX_WRITES:
            self._merge()

    def _merge(self) -> None:
        """Keep the older half as one: any of them may be the writer of any of their bytes."""
        half = len(self.writes) // 2
        old = self.writes[:half]
        events = tuple(dict.fromkeys(event for one in old for event in one[2]))
        self.writes[:half] = [(min(one[0] for one in old), max(one[1] for one in old), events, None)]

    def writers(self, geometry: Geometry, lo: int, hi: int, dense: bool) -> tuple[int, ...]:
        """The events that last wrote bytes of this view, oldest first.

        Exact, but that a strided write is never forgotten because others covered it piece by piece.
        """
        found: list[tuple[int, ...]] = []
        for old in reversed(self.writes):
            first, last, events, written = old
            if first >= hi or lo >= last or not _meet(old, geometry, dense):
                continue
            found.append(events)
            if written is None:
                if first <= lo and hi <= last:
                    break
            elif not dense and written == geometry:
                break
        return tuple(dict.fromkeys(event for events in reversed(found) for event in events))

    def is_tainted(self, lo: int, hi: int) -> bool:
        """Whether bytes of this span were changed by nobody we saw."""
        return any(a < hi and lo < b for a, b in self.tainted)

    # What operators do to a view: bytes lo to hi, all of them if it is dense

    def read(self, geometry: Geometry, lo: int, hi: int, dense: bool, value: int) -> tuple[tuple[int, ...], int]:
        """Note that a view was read as ``value``; its last writers and the flags of the read."""
        before = self.seen.get(geometry)
        if before is None:
            self.remember(geometry, value)
        elif before != value:
            if self.owned and not self.writing:
                self.changed(lo, hi)
            self.remember(geometry, value)
        writes = self.writes
        flags = STATE if self.state else 0
        if not writes:
            return (), flags | OUTSIDE
        if len(writes) == 1 and (only := writes[0])[3] is None and only[0] <= lo < hi <= only[1]:
            writers = only[2]
        else:
            writers = self.writers(geometry, lo, hi, dense)
        if not writers:
            flags |= OUTSIDE
        elif self.tainted and self.is_tainted(lo, hi):
            flags |= OVER
        return writers, flags

    def write(self, geometry: Geometry, lo: int, hi: int, dense: bool, value: int, event: int) -> None:
        """Note that ``event`` left ``value`` (0: undefined) in a view."""
        if dense and lo == 0 and hi == self.nbytes:  # all of it: what every new tensor is
            self.owned = True
            self.version += 1
            self.pinned = {}
            self.tainted = ()
            self.writes = [(lo, hi, (event,), None)]
            self.seen = {geometry: value} if value else {}
        else:
            self.record_write(geometry, lo, hi, dense, event)
            if value:
                self.remember(geometry, value)
        self.fresh = False

    def allocate(self, geometry: Geometry, lo: int, hi: int, dense: bool, garbage: int, event: int) -> None:
        """Note that ``event`` made a view without writing it; ``garbage`` is what happened to be there."""
        self.fresh = not self.owned
        self.record_write(geometry, lo, hi, dense, event)
        if garbage:
            self.remember(geometry, garbage)


def _meet(old: _Written, geometry: Geometry, dense: bool) -> bool:
    """Whether a write and a view whose spans overlap have a byte in common."""
    if dense and old[3] is None:
        return True
    mine = _bytes(geometry[:3] if dense else geometry)
    theirs = _bytes(old[3] or (old[0], old[1], None))
    try:
        return bool(np.shares_memory(mine, theirs, max_work=_OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class _Bytes:
    """Memory that numpy may reason about but that nobody reads."""

    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _bytes(geometry: Geometry) -> Any:
    lo, hi, dtype, *layout = geometry
    shape, strides = layout[:2] or ((hi - lo,), (1,))
    size = dtype.itemsize if layout else 1
    interface = {
        "data": ((1 << 32) + lo, True),
        "shape": shape,
        "strides": tuple(stride * size for stride in strides),
        "typestr": f"|V{size}",
        "version": 3,
    }
    return np.asarray(_Bytes(interface))


def _beside(old: _Written, lo: int, hi: int) -> list[_Written]:
    """What a later write of all bytes from ``lo`` to ``hi`` leaves of an older one."""
    first, last, events, geometry = old
    if last <= lo or first >= hi:
        return [old]
    if geometry is None:
        return [(a, b, events, None) for a, b in _subtract((first, last), lo, hi)]
    return [old] if first < lo or last > hi else []


def _subtract(span: tuple[int, int], lo: int, hi: int) -> list[tuple[int, int]]:
    """What is left of ``span`` without ``lo`` to ``hi``."""
    a, b = span
    if b <= lo or a >= hi:
        return [span]
    return [piece for piece in ((a, min(b, lo)), (max(a, hi), b)) if piece[0] < piece[1]]
