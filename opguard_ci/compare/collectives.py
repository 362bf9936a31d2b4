"""Which events of several ranks are one collective, and in which order collectives happened. Pure.

An event of a collective says in ``key`` where it belongs: ``<group> of <ranks> #<n>`` is the n-th collective of a
process group, ``<group> of <a>, <b> from <a> tag <t> #<n>`` the n-th message between two ranks. It is the same in all
ranks that take part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from ..trace.model import Event
from .side import Side

_KEY: Final = re.compile(r".* of (\d+(?:, \d+)*)(?: from .*)? #\d+")


def members(event: Event) -> list[int] | None:
    """The ranks that take part in a collective; None if that is not known."""
    found = _KEY.fullmatch(event.key or "")
    return None if found is None else [int(rank) for rank in found[1].split(", ")]


class Together:
    """The collectives of one step of a distributed run. ``sides``: the run's ranks, in order."""

    def __init__(self, sides: Sequence[Side], step: int) -> None:
        self._sides, self._step = sides, step

    @cached_property
    def _by_rank(self) -> list[list[Event]]:
        views = [side.view(self._step) for side in self._sides]
        return [view.where(view.is_collective) for view in views]

    @cached_property
    def _by_key(self) -> dict[str, dict[int, Event]]:
        found: dict[str, dict[int, Event]] = {}
        for rank, events in enumerate(self._by_rank):
            for event in events:
                if event.key is not None:
                    found.setdefault(event.key, {})[rank] = event
        return found

    def at(self, key: str | None) -> dict[int, Event]:
        """The events of one collective, by rank."""
        return self._by_key.get(key or "", {})

    @cached_property
    def _times(self) -> dict[str, int]:
        """When each collective happened: after all that a member had taken part in before.

        Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System" (1978).
        """
        times = dict.fromkeys(self._by_key, 0)
        for _ in range(len(times)):
            before = dict(times)
            for events in self._by_rank:
                time = 0
                for event in events:
                    if event.key is not None:
                        time = times[event.key] = max(times[event.key], time + 1)
            if times == before:
                break
        return times

    def time(self, rank: int, index: int) -> int:
        """How late in the order of the step's collectives an event of a rank stands: behind those that were done."""
        events = self._by_rank[rank]
        done = int(np.searchsorted([event.index for event in events], index))
        return max((self._times[event.key] for event in events[:done] if event.key is not None), default=0)
