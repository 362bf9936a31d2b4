"""What is known ahead of late links is what links that are worked out at once know."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.capture.ahead import Ahead, will_be_known
from opguard_ci.capture.links import ALLOCATED, GROWN, LEFT, SHOWN, Place, leave, read
from opguard_ci.capture.region import Region
from opguard_ci.capture.text import READ, WRITTEN

SIZE = 8

spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(lambda s: (s[0], min(SIZE, s[0] + s[1])))
does = st.tuples(st.sampled_from(("look", "write", "resize", "show", "settle")), spans | st.just((0, SIZE)))


def place(region: Region, span: tuple[int, int]) -> Place:
    return region, (*span, torch.uint8), *span, True


@dataclass
class Links:
    """Links of one storage, worked out at once, or late."""

    late: bool
    region: Region = field(default_factory=lambda: Region(nbytes=SIZE))
    waiting: list[tuple[str, int, tuple[int, int], int]] = field(default_factory=list)

    def knows(self, span: tuple[int, int], version: int) -> int:
        where = place(self.region, span)[1]
        return will_be_known(self.region, where, version) if self.late else self.region.assumed(where, version)

    def note(self, does: str, change: int, span: tuple[int, int], value: int) -> None:
        """A call looked at a view, or did something to it."""
        where = place(self.region, span)
        self.waiting.append((does, change, span, value))
        if not self.late:
            self.settle()
            return
        ahead = Ahead()
        ahead.reads([(value if does == "look" else 0, where)], [READ if does == "look" else WRITTEN])
        if does != "look":
            ahead.leaves(change, where, value)
        ahead.ends()

    def settle(self) -> None:
        for does, change, span, value in self.waiting:
            if does == "look":
                read(place(self.region, span), value)
            else:
                leave(change, place(self.region, span), value, 0)
        self.waiting = []


@given(st.lists(does, max_size=30))
def test_known_ahead_is_known_at_once(program: list[tuple[str, tuple[int, int]]]):
    """Whatever is written, looked at, shown and resized, and whenever values arrive, and it is what is there."""
    memory, version, changes = [0] * SIZE, 0, {"write": LEFT, "resize": GROWN, "show": SHOWN, "alloc": ALLOCATED}
    at_once, late = Links(late=False), Links(late=True)
    for number, (name, (lo, hi)) in enumerate(program):
        if name == "settle":
            late.settle()
            continue
        if name in ("write", "resize"):
            memory[lo:hi] = [number + 1] * (hi - lo)
            version += 1
        value = 1 + hash(tuple(memory[lo:hi])) % (1 << 60)
        if name == "look":
            known = at_once.knows((lo, hi), version)
            assert bool(known) == bool(late.knows((lo, hi), version))
            assert known in (0, value)
            if known:
                continue
        for links in (at_once, late):
            links.note(name, changes.get(name, 0), (lo, hi), value)
    late.settle()
    assert late.region.seen == at_once.region.seen


def test_what_has_no_value_is_looked_at_from_there_on():
    """Memory that was written while a CUDA graph was recorded is written again by whoever replays it."""
    region = Region(nbytes=SIZE)
    whole = place(region, (0, SIZE))
    Ahead().leaves(LEFT, whole, 0)
    Ahead().reads([(5, whole)], [READ])
    assert not will_be_known(region, whole[1], 0)


def test_other_views_of_what_may_have_changed_are_looked_at():
    """The view that was hashed again is known."""
    region = Region(nbytes=SIZE)
    whole, half = place(region, (0, SIZE)), place(region, (0, SIZE // 2))
    Ahead().leaves(LEFT, whole, 5)
    Ahead().reads([(6, half)], [READ])
    Ahead().suspects(whole)
    assert will_be_known(region, whole[1], 0)
    assert not will_be_known(region, half[1], 0)


def test_what_is_being_written_is_looked_at():
    """Until the call is over."""
    region = Region(nbytes=SIZE)
    whole = place(region, (0, SIZE))
    Ahead().leaves(LEFT, whole, 5)
    call = Ahead()
    call.reads([(5, whole)], [WRITTEN])
    assert not will_be_known(region, whole[1], 0)
    call.ends()
    assert will_be_known(region, whole[1], 0)
