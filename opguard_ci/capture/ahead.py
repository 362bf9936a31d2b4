"""What the links will know, while values of a device are still on their way (level ``op``).

Links are worked out late there (see ``late``), but whether a tensor must be looked at is decided at its call. Which
views will have a known value by then does not depend on the values: each region has one that is ahead of it, which is
told of the same writes and looks in the same order, with 1 for every value. It never says a value; the links do, when
they get there. What only values show, such as bytes that changed unseen, is known here as soon as it is known there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .links import LEFT, Place, leave
from .region import Geometry, Region
from .text import SCRATCH


def ahead_of(region: Region) -> Region:
    """The region that is ahead of this one."""
    if region.ahead is None:
        region.ahead = type(region)(region.pointer, region.nbytes)
        region.ahead.owned, region.ahead.fresh = region.owned, region.fresh
    return region.ahead


def will_be_known(region: Region, geometry: Geometry, version: int) -> bool:
    """Whether the links will know the value of a view. ``version``: as for ``Region.assumed``."""
    ahead = ahead_of(region)
    ahead.owned = ahead.owned or region.owned
    known = ahead.assumed(geometry, version)
    return bool(known) and not region.foreign and not region.tainted


def was_looked_at(place: Place) -> None:
    """A view was hashed."""
    ahead_of(place[0]).remember(place[1], 1)


class Ahead:
    """One call."""

    __slots__ = ("_writing",)

    def __init__(self) -> None:
        self._writing: list[Region] = []

    def reads(self, places: Iterable[tuple[int, Place | None]], marks: Sequence[int]) -> None:
        """It begins. ``places``: value (0: none) and place of each argument."""
        for (value, place), mark in zip(places, marks, strict=True):
            if place is None:
                continue
            if value:
                was_looked_at(place)
            if mark and mark != SCRATCH:
                region = ahead_of(place[0])
                region.writing += 1
                self._writing.append(region)

    def leaves(self, change: int, place: Place, value: int) -> None:
        """It did this to the memory of an output or argument."""
        region = ahead_of(place[0])
        leave(change, (region, *place[1:]), 1 if value else 0, 0)
        if change == LEFT and not value:  # as while a CUDA graph is recorded: nobody sees when it writes again
            region.foreign = True

    def suspects(self, place: Place) -> None:
        """It may have changed what it only reads, and it was hashed again: nothing is known of other views of it."""
        _, geometry, lo, hi, _ = place
        region = ahead_of(place[0])
        region.forget(lo, hi)
        region.remember(geometry, 1)

    def ends(self) -> None:
        """It is over, or failed."""
        for region in self._writing:
            region.writing -= 1
        self._writing = []
