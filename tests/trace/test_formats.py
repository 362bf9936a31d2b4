from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.trace.formats import FLOATS, ITEMSIZE, distances, numbers, patterns, ulps

WIDTHS = {name: ITEMSIZE[name] for name in FLOATS}


def bits_of(dtype: str) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    width = WIDTHS[dtype]
    edges = st.sampled_from([0, 1, 1 << (8 * width - 1), (1 << (8 * width)) - 1, (1 << (8 * width - 1)) - 1])
    words = st.lists(edges | st.integers(0, (1 << (8 * width)) - 1), min_size=1, max_size=6)
    return words.map(lambda found: np.array(found, f"u{width}"))


PAIRS = st.sampled_from(sorted(FLOATS)).flatmap(
    lambda dtype: st.tuples(st.just(dtype), bits_of(dtype), bits_of(dtype)).map(
        lambda found: (found[0], *(side[: min(map(len, found[1:]))] for side in found[1:]))
    )
)


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_numbers_are_torchs(dtype: str) -> None:
    """Every pattern of 8 and 16 bits, and edges of the wider ones, mean the number that torch reads in them."""
    width = WIDTHS[dtype]
    if width <= 2:
        bits = np.arange(1 << (8 * width), dtype=f"u{width}")
    else:
        bits = np.array([0, 1, 1 << (8 * width - 1), (1 << (8 * width - 1)) - 1, 0x3F80_0000, 0x7F80_0000], f"u{width}")
    theirs = torch.from_numpy(bits.view(np.uint8).copy()).view(getattr(torch, dtype)).double().numpy()
    with np.errstate(invalid="ignore"):
        mine = numbers(bits, dtype).astype(np.float64)
    np.testing.assert_array_equal(mine, theirs)


@given(PAIRS)
def test_ulp_distance_is_a_metric_on_the_numbers(pair: Any) -> None:
    """It is symmetric, 0 exactly for equal numbers (both zeros are one), and grows along the order of numbers."""
    dtype, left, right = pair
    x, y = (numbers(side, dtype).astype(np.float64) for side in (left, right))
    finite = np.isfinite(x) & np.isfinite(y)
    left, right, x, y = left[finite], right[finite], x[finite], y[finite]
    there, back = ulps(left, right, dtype), ulps(right, left, dtype)
    assert (there == back).all()
    assert ((there == 0) == (x == y)).all()
    zero = np.zeros_like(left)
    same_side = (np.sign(x) * np.sign(y)) >= 0
    far = np.maximum(ulps(left, zero, dtype), ulps(right, zero, dtype))
    near = np.minimum(ulps(left, zero, dtype), ulps(right, zero, dtype))
    assert (there == np.where(same_side, far - near, far + near)).all()


@given(st.sampled_from(["float32", "float64", "float16"]), st.integers(1, 5), st.floats(-1000, 1000, width=16))
def test_neighbours_are_one_ulp_apart(dtype: str, steps: int, begin: float) -> None:
    """As numpy's nextafter counts them, also through zero."""
    x = y = np.dtype(dtype).type(begin)
    for _ in range(steps):
        y = np.nextafter(y, np.dtype(dtype).type(np.inf))
    word = f"u{np.dtype(dtype).itemsize}"
    assert ulps(np.array([x]).view(word), np.array([y]).view(word), dtype)[0] == steps


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), min_size=1))
def test_integers_are_apart_exactly(pairs: list[tuple[int, int]]) -> None:
    """Even where the distance does not fit the dtype."""
    left, right = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    assert distances(left, right).tolist() == [abs(a - b) for a, b in pairs]


def test_an_unknown_dtype_is_bytes() -> None:
    """A format of tomorrow has patterns of one byte each."""
    assert patterns(np.arange(6, dtype=np.uint8), "float8_e8m0fnu").tolist() == [0, 1, 2, 3, 4, 5]
