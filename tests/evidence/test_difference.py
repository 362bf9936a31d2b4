from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.evidence.difference import Content, density, difference, region
from opguard_ci.trace.formats import COMPLEX, ITEMSIZE

DTYPES = [*sorted(ITEMSIZE), "float4_e2m1fn_x2"]


def content(values: Any, dtype: str | None = None) -> Content:
    array = np.ascontiguousarray(values)
    return Content(dtype or str(array.dtype), np.shape(values), array.reshape(-1).view(np.uint8))


@st.composite
def pairs(draw: Any) -> tuple[Content, Content]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = math.prod(shape) * ITEMSIZE.get(dtype, 1)
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    other = data.copy()
    if size:
        for place in draw(st.lists(st.integers(0, size - 1), max_size=4)):
            other[place] = draw(st.integers(0, 255))
    if dtype == "bool":
        data, other = data & 1, other & 1
    return Content(dtype, shape, data), Content(dtype, shape, other)


@given(pairs())
def test_elements_differ_where_their_bytes_do(pair: tuple[Content, Content]) -> None:
    """Whatever the dtype; everything that is told of them is JSON, and the same from both sides but for values."""
    left, right = pair
    found, back = difference(left, right), difference(right, left)
    json.dumps(found, allow_nan=False)
    width = ITEMSIZE.get(left.dtype, 1)
    unequal = (left.data.reshape(-1, width) != right.data.reshape(-1, width)).any(1)
    assert found["different"] == int(unequal.sum())
    assert found["elements"] == left.elements
    for key in ("different", "max_ulp", "median_ulp", "max_abs", "region", "map", "flips"):
        assert found.get(key) == back.get(key)
    if found["different"]:
        places = np.argwhere(unequal.reshape(left.shape))
        assert found["region"]["box"] == [[int(a.min()), int(a.max()) + 1] for a in places.T]
        assert sum(map(sum, found["map"]["cells"])) == found["different"]
        parts = 2 if left.dtype in COMPLEX else 1
        flipped = sum(found["flips"]["bits"].values())
        bits = int(np.unpackbits(left.data ^ right.data).sum())
        assert flipped == bits or (parts == 2 and flipped <= bits)


def test_a_single_flipped_bit() -> None:
    """Is named by its number, its field, and the pattern that all differing elements share."""
    values = np.linspace(0.5, 2, 24, dtype=np.float32).reshape(3, 8)
    other = values.copy()
    other.view(np.uint32)[1, 4] ^= 1 << 13
    found = difference(content(values), content(other))
    assert (found["different"], found["max_ulp"], found["median_ulp"]) == (1, 1 << 13, 1 << 13)
    assert found["region"] == {"box": [[1, 2], [4, 5]], "rows": 1, "of_rows": 3}
    assert found["flips"] == {
        "bits": {"13": 1},
        "fields": {"sign": 0, "exponent": 0, "mantissa": 1},
        "single_bit": 1,
        "xor": "0x00002000",
    }
    first = found["first"][0]
    assert first["index"] == [1, 4]
    assert [float(first[side]) for side in ("reference", "candidate")] == [values[1, 4], other[1, 4]]


def test_zeros_and_nans() -> None:
    """-0 is another element than 0 but no ULP away; NaN and infinity are counted and left out of every distance."""
    left = np.array([0.0, 1.0, 1.0, np.inf, 2.0], np.float32)
    right = np.array([-0.0, np.nan, np.inf, -np.inf, 2.0], np.float32)
    found = difference(content(left), content(right))
    assert (found["different"], found["max_ulp"], found["max_abs"]) == (4, 0, 0)
    assert found["nonfinite"] == {"nan": [0, 1], "inf": [1, 2]}
    payload = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert difference(content(payload), content(payload[::-1].copy()))["different"] == 2


def test_integers_bools_and_complex_numbers() -> None:
    """Integers have an exact largest distance and no ULP, bools neither; of a complex number the worse part counts."""
    found = difference(content(np.array([-(2**63), 5])), content(np.array([2**63 - 1, 5])))
    assert (found["max_ulp"], found["max_abs"]) == (None, 2**64 - 1)
    found = difference(content(np.array([True, False])), content(np.array([True, True])))
    assert (found["different"], found["max_ulp"], found["max_abs"]) == (1, None, None)
    one = np.array([3 + 4j], np.complex64)
    other = one + np.complex64(np.spacing(np.float32(4)) * 2j)
    found = difference(content(one), content(other))
    assert (found["different"], found["max_ulp"]) == (1, 2)
    assert found["max_abs"] == pytest.approx(2 * np.spacing(np.float32(4)))


def test_other_shapes_and_dtypes() -> None:
    """Shapes that differ are said, and nothing is measured; other dtypes are compared as numbers."""
    found = difference(content(np.zeros((2, 3), np.float32)), content(np.zeros((3, 2), np.float32)))
    assert (found["different"], found["reference_shape"], found["shape"]) == (None, [2, 3], [3, 2])
    assert "shapes differ" in found["note"]
    exact = np.array([0.1, 0.5], np.float32)
    found = difference(content(exact.astype(np.float64)), content(exact))
    assert (found["different"], found["reference_dtype"], found["max_ulp"]) == (0, "float64", None)
    found = difference(content(np.array([0.1, 0.5])), content(exact))
    assert (found["different"], found["region"]["box"]) == (1, [[0, 1]])
    assert 0 < found["max_abs"] < 1e-8


@given(st.lists(st.integers(1, 40), max_size=3), st.data())
def test_the_map_holds_every_element_once(shape: list[int], data: Any) -> None:
    """In a grid that stays small, whatever the shape; a region counts rows of the first axis."""
    where = np.array(sorted(data.draw(st.sets(st.integers(0, math.prod(shape) - 1), min_size=1))))
    found = density(where, shape)
    assert np.shape(found["cells"]) == (min(found["rows"], 16), min(found["columns"], 48))
    assert np.sum(found["cells"]) == len(where)
    if shape:
        rows = {int(n) // math.prod(shape[1:]) for n in where}
        assert region(where, shape)["rows"] == len(rows)
