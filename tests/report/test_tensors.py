from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.evidence.difference import Content, difference
from opguard_ci.report.layout import WIDTH, plain
from opguard_ci.report.tensors import tensor_lines


def content(values: Any) -> Content:
    return Content(str(values.dtype), values.shape, np.ascontiguousarray(values).reshape(-1).view(np.uint8))


def test_a_flipped_bit_to_the_letter() -> None:
    """The table, the place, the bit, the values."""
    values = np.linspace(0.5, 2, 24, dtype=np.float32).reshape(3, 8)
    other = values.copy()
    other.view(np.uint32)[1, 4] ^= 1 << 13
    row = {"name": "other", "role": "input", **difference(content(values), content(other))}
    assert plain(tensor_lines([row])).splitlines() == [
        "                                   different  max ulp  median  max abs",
        "              other  float32[3,8]  1 of 24    8,192    8,192   0.000977",
        "              other  inside [1, 4], in 1 of 3 rows; relative difference up to 0.000761",
        "              other  bit 13 flipped in 1; 1 element by a single bit",
        "              [1,4]  1.2826087 -> 1.2816322  (0x3fa42c86 -> 0x3fa40c86)",
    ]


def test_what_is_not_compared_says_why() -> None:
    """Its row has no numbers, and a sentence below the table."""
    row = {"name": "output 0", "role": "output", **difference(content(np.zeros((2, 3))), content(np.zeros(6)))}
    shown = plain(tensor_lines([row]))
    assert "float64[2,3] -> float64[6]  not compared" in shown
    assert "output 0  the shapes differ, so elements have no counterparts" in shown


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = (
    "name",
    "role",
    "dtype",
    "shape",
    "different",
    "elements",
    "max_ulp",
    "region",
    "flips",
    "nonfinite",
    "first",
    "note",
)


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, ANYTHING)), max_size=3))
def test_any_object_is_laid_out(tensors: list[dict[str, Any]]) -> None:
    """A document that anybody may have written neither fails nor breaks the page."""
    for line in tensor_lines(tensors):
        assert len(line.text) <= WIDTH
        assert not any(ord(letter) < 32 for letter in line.text)
