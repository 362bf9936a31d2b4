"""How far two values lie apart, and what a tolerance says to it."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opguard_ci import atol, rtol, ulp
from opguard_ci.compare.deviation import deviation
from opguard_ci.trace.known import number_format

F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
F64 = st.floats(allow_nan=False, allow_infinity=False)


def f32(*numbers: float) -> bytes:
    return struct.pack(f"={len(numbers)}f", *numbers)


def f64(*numbers: float) -> bytes:
    return struct.pack(f"={len(numbers)}d", *numbers)


def moved(number: float, ulps: int) -> float:
    """The float32 that lies so many numbers above."""
    step = np.float32(math.copysign(math.inf, ulps))
    for _ in range(abs(ulps)):
        with np.errstate(over="ignore"):
            number = float(np.nextafter(np.float32(number), step))
    return number


@given(F32, st.integers(-20, 20), st.integers(1, 20))
def test_ulp_allows_so_many_neighbours(number: float, ulps: int, allowed: int):
    """And not one more, across 0 as well; the distance is that number."""
    other = moved(number, ulps)
    assume(math.isfinite(other))
    found = deviation(f32(number), f32(other), "float32", ulp(allowed))
    assert found.max_ulp == abs(ulps)
    assert found.within == (abs(ulps) <= allowed)


@given(F64, F64, st.floats(1e-300, 1e300), st.floats(0, 1e300))
def test_rtol_allows_what_it_says(reference: float, candidate: float, fraction: float, distance: float):
    """Against exact arithmetic, but for the last bit of the limit itself."""
    found = deviation(f64(reference), f64(candidate), "float64", rtol(fraction, atol=distance))
    apart = abs(Fraction(candidate) - Fraction(reference))
    limit = Fraction(distance) + Fraction(fraction) * abs(Fraction(reference))
    if apart > limit * (1 + Fraction(1, 2**50)) and math.isfinite(float(fraction) * abs(reference) + distance):
        assert not found.within
    if apart < limit * (1 - Fraction(1, 2**50)) - Fraction(5e-324) and math.isfinite(candidate - reference):
        assert found.within


@given(st.lists(F32, min_size=1, max_size=6), st.data())
def test_the_worst_element_decides(numbers: list[float], data: st.DataObject):
    """One element beyond the tolerance is enough, wherever it lies."""
    place = data.draw(st.integers(0, len(numbers) - 1))
    other = list(numbers)
    other[place] = moved(other[place], 3)
    assume(math.isfinite(other[place]))
    found = deviation(f32(*numbers), f32(*other), "float32", ulp(2))
    assert (found.different, found.max_ulp, found.within) == (1, 3, False)
    assert deviation(f32(*numbers), f32(*other), "float32", ulp(3)).within


@given(st.binary(min_size=8, max_size=8))
def test_equal_bits_are_within_everything(data: bytes):
    """NaN and infinities too."""
    found = deviation(data, data, "float32", ulp(1))
    assert (found.different, found.max_ulp, found.within) == (0, 0, True)


@pytest.mark.parametrize("tolerance", [ulp(2**60), rtol(1e300), atol(1e300)])
@pytest.mark.parametrize("pair", [(1.0, math.inf), (math.inf, 3.4e38), (math.nan, 1.0), (1.0, math.nan)])
def test_nothing_allows_infinity_or_nan_on_one_side(tolerance, pair):
    """The largest number is one ulp from infinity, and yet not near it."""
    found = deviation(f32(pair[0]), f32(pair[1]), "float32", tolerance)
    assert not found.within
    assert found.max_ulp is None


def test_nans_of_another_payload_are_another_value():
    """Only equal bits are the same NaN."""
    left, right = (struct.pack("=I", bits) for bits in (0x7FC00000, 0x7FC00001))
    assert not deviation(left, right, "float32", ulp(5)).within


def test_both_zeros_are_one_number():
    """Other bits, no distance."""
    found = deviation(f32(0.0), f32(-0.0), "float32", ulp(1))
    assert (found.different, found.max_ulp, found.within) == (1, 0, True)


def test_near_zero_only_atol_allows():
    """A fraction of 0 is 0."""
    assert not deviation(f32(0.0), f32(1e-9), "float32", rtol(0.5)).within
    assert deviation(f32(0.0), f32(1e-9), "float32", rtol(0.5, atol=1e-8)).within


def test_bfloat16_counts_its_own_ulps():
    """Whose neighbours are 2**16 float32 ulps apart."""
    left, right = struct.pack("=H", 0x3F80), struct.pack("=H", 0x3F82)
    assert deviation(left, right, "bfloat16", ulp(2)).within
    assert not deviation(left, right, "bfloat16", ulp(1)).within


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        ("float32[4,64]", "float32"),
        ("bfloat16[] cuda", "bfloat16"),
        ("complex64[2]", "float32"),
        ("float", "float64"),
        ("complex", "float64"),
        ("float64", "float64"),
        ("float8_e4m3fn[2]", "float8_e4m3fn"),
        ("int64[2]", None),
        ("bool[1]", None),
        ("str", None),
        ("int", None),
        ("", None),
    ],
)
def test_what_has_numbers(spec: str, dtype: str | None):
    """Whole numbers, text and masks are equal or not."""
    assert number_format(spec) == dtype
