"""Last writers of a view, against a map of every byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opguard_ci.capture.links import Memory, allocate, read, write
from opguard_ci.capture.region import Region
from opguard_ci.capture.sparse import parts
from opguard_ci.trace.model import OUTSIDE, OVER, STATE

SIZE = 24


@st.composite
def views(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and offset of a view of ``SIZE`` elements, overlapping and expanded ones among them."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    strides = tuple(draw(st.lists(st.integers(0, 6), min_size=ndim, max_size=ndim)))
    span = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if span >= SIZE:
        return (SIZE,), (1,), 0
    return shape, strides, draw(st.integers(0, SIZE - 1 - span))


def positions(base: torch.Tensor, view: torch.Tensor) -> set[int]:
    """The bytes that a view shows."""
    index = torch.arange(SIZE).as_strided(view.shape, view.stride(), view.storage_offset()).flatten().tolist()
    size = base.itemsize
    return {place * size + byte for place in index for byte in range(size)}


@given(st.lists(st.tuples(st.booleans(), views()), max_size=25))
@example([(True, ((1,), (0,), 1)), (True, ((2, 4, 3), (2, 3, 6), 0)), (False, ((1,), (0,), 1))])
@settings(max_examples=150, deadline=None)
def test_writers_are_those_of_a_byte_map(steps: list[tuple[bool, Any]]):
    """Every last writer of a byte is named; who else is named wrote a byte of the view once, covered since."""
    base = torch.zeros(SIZE, dtype=torch.int16)
    memory = Memory()
    last: dict[int, int] = {}
    ever: dict[int, set[int]] = {}
    for event, (writes, (shape, strides, offset)) in enumerate(steps):
        view = base.as_strided(shape, strides, offset)
        place = memory.place(view)
        assert place is not None
        mine = positions(base, view)
        if writes:
            write(place, event + 1, event)
            last.update(dict.fromkeys(mine, event))
            ever[event] = mine
            continue
        writers, flags = read(place, 7)
        true = {last[byte] for byte in mine if byte in last}
        assert true <= set(writers)
        assert all(ever[event] & mine for event in writers)
        assert bool(flags & OUTSIDE) == (not writers)
        assert list(writers) == sorted(writers)


@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)), max_size=30), st.integers(0, SIZE - 1))
@settings(max_examples=150, deadline=None)
def test_contiguous_writes_are_followed_exactly(spans: list[tuple[int, int]], at: int):
    """Of slices, exactly the last writers are named."""
    region = Region(nbytes=SIZE)
    last: dict[int, int] = {}
    for event, (lo, length) in enumerate(spans):
        hi = min(SIZE, lo + length)
        region.record_write((lo, hi, None), lo, hi, True, event)
        last.update(dict.fromkeys(range(lo, hi), event))
    for lo, hi in ((at, SIZE), (0, at + 1)):
        true = {last[byte] for byte in range(lo, hi) if byte in last}
        assert set(region.writers((lo, hi, None), lo, hi, True)) == true


def test_columns_of_a_matrix_are_told_apart():
    """Strided writes whose spans overlap but that share no byte are no writers of each other."""
    base = torch.zeros(6, 4)
    memory = Memory()
    for column in range(4):
        place = memory.place(base[:, column])
        assert place is not None
        write(place, column + 1, column)
    for column in range(4):
        place = memory.place(base[:, column])
        assert place is not None
        assert read(place, column + 1) == ((column,), 0)
    whole = memory.place(base)
    assert whole is not None
    assert read(whole, 9)[0] == (0, 1, 2, 3)


def test_many_strided_writes_stay_bounded_and_complete():
    """A cache filled row by row, a thousand times: no writer is lost, little is held."""
    base = torch.zeros(3, 1000)
    memory = Memory()
    for column in range(1000):
        place = memory.place(base[:, column])
        assert place is not None
        write(place, column + 1, column)
    whole = memory.place(base)
    assert whole is not None
    assert len(whole[0].writes) <= 257
    assert read(whole, 1)[0] == tuple(range(1000))


def test_memory_that_others_changed_is_over_until_it_is_written():
    """The mark sticks to the bytes, whichever view reads them, and a recorded write lifts it."""
    base = torch.zeros(8)
    memory = Memory()
    whole, left, right = (memory.place(view) for view in (base, base[:4], base[4:]))
    assert whole is not None and left is not None and right is not None
    write(whole, 1, 0)
    assert read(left, 5) == ((0,), 0)
    assert read(left, 6) == ((0,), OVER)
    assert read(whole, 7)[1] == OVER
    assert read(left, 6)[1] == OVER
    write(left, 8, 1)
    write(right, 9, 2)
    assert read(whole, 10) == ((1, 2), 0)


def test_state_is_over_whoever_made_its_memory():
    """Parameters that lie in numpy's memory are the training's all the same."""
    import numpy as np

    for is_state in (False, True):
        held = np.zeros(4, np.float32)
        place = Memory().place(torch.from_numpy(held))
        assert place is not None
        place[0].state = is_state
        write(place, 1, 0)
        writers, flags = read(place, 2)
        assert (writers, flags) == (((0,), STATE | OVER) if is_state else ((), OUTSIDE))


def test_new_memory_may_be_filled_by_others():
    """``empty`` and then a fill through numpy: what is read comes from outside, it is not garbage."""
    base = torch.empty(4)
    place = Memory().place(base, made=True)
    assert place is not None
    allocate(place, 5, 0)
    assert read(place, 5) == ((0,), 0)
    assert read(place, 6) == ((), OUTSIDE)
    write(place, 7, 1)
    assert read(place, 7) == ((1,), 0)


def test_a_write_that_is_under_way_is_nobody_elses():
    """While a recorded operator writes in another thread, other bytes are no foreign write."""
    place = Memory().place(torch.zeros(4))
    assert place is not None
    write(place, 1, 0)
    place[0].writing = 1
    assert read(place, 2) == ((0,), 0)


def test_storages_over_the_same_memory_share_a_region():
    """numpy, DLPack, with and without an offset: the same bytes have the same writers."""
    base = torch.zeros(8)
    memory = Memory()
    place = memory.place(base)
    assert place is not None
    write(place, 1, 0)
    for other in (
        torch.from_numpy(base.numpy()),
        torch.from_numpy(base.numpy()[2:6]),
        torch.from_dlpack(base),
        torch.from_dlpack(base[3:].detach()),
    ):
        shared = memory.place(other)
        assert shared is not None
        assert shared[0] is place[0]
        assert shared[2] == (other.data_ptr() - base.data_ptr())


def test_nothing_is_kept_alive_and_freed_memory_is_forgotten():
    """A storage at the address of one that is gone begins with nothing."""
    memory = Memory()
    for event in range(200):
        held = torch.zeros(1000)
        place = memory.place(held)
        assert place is not None
        assert read(place, 1) == ((), OUTSIDE)
        write(place, 2, event)
        del held, place
    assert len(memory) <= 200
    memory.sweep()
    assert len(memory) == 0


def test_a_resized_storage_is_found_at_its_new_place():
    """Memory that moved keeps its writers; what then lies at the old address is not taken for it."""
    base = torch.zeros(4)
    memory = Memory()
    place = memory.place(base)
    assert place is not None
    write(place, 1, 0)
    old = base.data_ptr()
    base.resize_(100_000)
    memory.resized(base)
    moved = memory.place(base[:4])
    assert moved is not None
    assert read(moved, 1)[0] == (0,)
    assert base.data_ptr() != old
    assert memory.place(torch.from_numpy(base.numpy())[4:])[0] is moved[0]  # type: ignore[index]


def test_tensors_without_memory_have_no_place():
    """Meta and wrapper tensors."""
    memory = Memory()
    assert memory.place(torch.empty(3, device="meta")) is None


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_lies_where_its_values_do(layout: torch.layout):
    """Who wrote the values is known, and what was seen there counts no more once the indices are rewritten."""
    memory = Memory()
    tensor = torch.eye(3).to_sparse(layout=layout)
    values, indices = parts(tensor)  # type: ignore[misc]
    write(memory.place(values), 7, 40)  # type: ignore[arg-type]
    assert read(memory.place(tensor), 8) == ((40,), 0)  # type: ignore[arg-type]
    write(memory.place(indices[0]), 9, 41)  # type: ignore[arg-type]
    assert read(memory.place(tensor), 10) == ((40,), 0)  # type: ignore[arg-type]
    assert read(memory.place(tensor), 11) == ((40,), OVER)  # type: ignore[arg-type]
