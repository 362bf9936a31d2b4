"""Reading strided memory as words gives the words of the contiguous copy."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.capture.fingerprint.strides import COLUMNS, NOTHING, ROWS, Strides, layout_of, strides_of

DTYPES = (torch.uint8, torch.int16, torch.float32, torch.float64, torch.complex128)


def words_of(memory: np.ndarray, at: int, how: Strides) -> np.ndarray:
    """The words that ``how`` describes, of memory as bytes, beginning at byte ``at``."""
    per = 8 // how.item
    shape = (how.outer, how.middle, how.inner, how.num_rows, how.row_words, per)
    *others, across = (stride * how.item for stride in how.strides)
    items = np.ndarray(shape, f"u{how.item}", memory, at, (*others, across * per, across))
    return np.ascontiguousarray(items).reshape(-1).view("u8")


@st.composite
def views(draw) -> torch.Tensor:
    """A view of random memory, sliced, permuted and expanded."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    memory = torch.randint(0, 256, (8**5 * 16 + 128,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    base = memory.view(dtype)[draw(st.integers(0, 4)) :]
    count = int(np.prod(shape)) * 2 ** len(shape)
    x = base[:count].reshape([2 * n for n in shape])
    for axis, length in enumerate(shape):
        x = draw(
            st.sampled_from(
                [
                    x,
                    x.narrow(axis, 0, length),
                    x.narrow(axis, 1, 1).expand([3 if n == axis else -1 for n in range(x.ndim)]),
                ]
            )
        )
    return x.permute(draw(st.permutations(range(x.ndim))))


@given(views())
def test_same_words(x):
    """Every tensor that can be read in place is read in logical order."""
    at = x.storage_offset() * x.itemsize
    how = strides_of(x.shape, x.stride(), x.itemsize, at % 8 == 0)
    if how is None:
        return
    memory = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).numpy()
    expected = x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8).numpy().view("u8")
    assert words_of(memory, at, how).tolist() == expected.tolist()


@given(views(), st.data())
def test_a_layout_is_one_of_order(x: torch.Tensor, data: st.DataObject):
    """The elements are the same ones in the same order, and a view of another shape has the same layout."""
    places = torch.arange(8**5).as_strided(x.shape, x.stride())
    shape, strides = layout_of(x.shape, x.stride())
    assert torch.equal(places.as_strided(shape, strides).flatten(), places.flatten())
    other = x.unsqueeze(data.draw(st.integers(0, x.ndim)))
    axis = data.draw(st.integers(0, x.ndim - 1))
    if x.shape[axis] % 2 == 0:
        other = x.view(*x.shape[:axis], 2, -1, *x.shape[axis + 1 :])
    assert layout_of(other.shape, other.stride()) == (shape, strides)
    turned = places.transpose(0, -1)
    if layout_of(turned.shape, turned.stride()) == (shape, strides):
        assert torch.equal(turned.flatten(), places.flatten())


def test_common_views_are_read_in_place():
    """A transposed weight, the heads of an attention, a slice of rows."""
    weight = torch.zeros(64, 32, dtype=torch.bfloat16).t()
    assert strides_of(weight.shape, weight.stride(), 2, True).together == ROWS
    heads = torch.zeros(2, 16, 3, 4, 8, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
    for x in (heads, *heads):
        assert strides_of(x.shape, x.stride(), 2, True).together == COLUMNS
    rows = torch.zeros(10, 64)[:, :32]
    assert strides_of(rows.shape, rows.stride(), 4, True).item == 8
    expanded = torch.zeros(8, 1).expand(8, 8)
    assert strides_of(expanded.shape, expanded.stride(), 4, True).together == ROWS
    halves = torch.zeros(8, 16)[::2, ::2]
    assert strides_of(halves.shape, halves.stride(), 4, True).together == NOTHING


def test_words_over_the_end_of_a_row():
    """Rows that are no whole words cannot be read in place."""
    x = torch.zeros(10, 7)[:, :5]
    assert strides_of(x.shape, x.stride(), 4, True) is None
