"""What the bytes of a dtype mean: numbers, their neighbours, the fields of their bits. Pure numpy, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Float:
    """A binary floating-point format.

    ``nans``: ``ieee`` (all exponent bits set is infinity or NaN), ``all`` (only all bits set is NaN, no infinity) or
    ``zero`` (only the pattern of -0 is NaN, no infinity).
    """

    exponent: int
    mantissa: int
    bias: int
    nans: str = "ieee"

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return 1 + self.exponent + self.mantissa

    def field(self, bit: int) -> str:
        """Which field a bit belongs to, counted from the lowest."""
        if bit < self.mantissa:
            return "mantissa"
        return "exponent" if bit < self.mantissa + self.exponent else "sign"


FLOATS: Final = {
    "float64": Float(11, 52, 1023),
    "float32": Float(8, 23, 127),
    "float16": Float(5, 10, 15),
    "bfloat16": Float(8, 7, 127),
    "float8_e5m2": Float(5, 2, 15),
    "float8_e4m3fn": Float(4, 3, 7, "all"),
    "float8_e5m2fnuz": Float(5, 2, 16, "zero"),
    "float8_e4m3fnuz": Float(4, 3, 8, "zero"),
}
COMPLEX: Final = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
INTEGERS: Final = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
ITEMSIZE: Final = {
    **{name: float_.bits // 8 for name, float_ in FLOATS.items()},
    **{name: FLOATS[part].bits // 4 for name, part in COMPLEX.items()},
    **{name: np.dtype(name).itemsize for name in INTEGERS},
    "bool": 1,
}
"""Bytes of an element. Other dtypes are compared byte by byte."""


def patterns(data: Array, dtype: str) -> Array:
    """The bytes of a tensor as unsigned integers, one per number (two per complex element, one per unknown byte)."""
    width = ITEMSIZE[COMPLEX.get(dtype, dtype)] if dtype in ITEMSIZE else 1
    return data.view(f"u{width}")


def numbers(bits: Array, dtype: str) -> Array:
    """The numbers that bit patterns of a real dtype stand for; small floats as float32, which holds them exactly."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in FLOATS and FLOATS[dtype].bits == 8:
        return _small(dtype)[bits]
    found: Array = bits.view(np.bool_ if dtype == "bool" else dtype)
    return found


@cache
def _small(dtype: str) -> Array:
    """All 256 numbers of an 8-bit format."""
    format_ = FLOATS[dtype]
    found = np.empty(256, np.float32)
    top = (1 << format_.exponent) - 1
    for bits in range(256):
        sign = -1.0 if bits >> 7 else 1.0
        exponent = bits >> format_.mantissa & top
        mantissa = bits & (1 << format_.mantissa) - 1
        if format_.nans == "ieee" and exponent == top:
            found[bits] = np.nan if mantissa else sign * np.inf
        elif (format_.nans == "all" and bits & 0x7F == 0x7F) or (format_.nans == "zero" and bits == 0x80):
            found[bits] = np.nan
        else:
            scale = 2.0 ** (max(exponent, 1) - format_.bias - format_.mantissa)
            found[bits] = sign * (mantissa + ((1 << format_.mantissa) if exponent else 0)) * scale
    return found


def ulps(left: Array, right: Array, dtype: str) -> Array:
    """How many numbers of a format two finite ones lie apart, as unsigned 64-bit integers; -0 and 0 are the same."""
    return _distance(_rank(left, FLOATS[dtype].bits), _rank(right, FLOATS[dtype].bits))


def _rank(bits: Array, width: int) -> Array:
    """The place of each number among all of its format, 0 for both zeros."""
    magnitude = (bits & bits.dtype.type((1 << (width - 1)) - 1)).astype(np.int64)
    found: Array = np.where(bits >> bits.dtype.type(width - 1) != 0, -magnitude, magnitude)
    return found


def _distance(left: Array, right: Array) -> Array:
    """``|left - right|`` of integers of one dtype, exactly, as unsigned 64-bit integers."""
    low, high = np.minimum(left, right), np.maximum(left, right)
    return high.astype(np.uint64) - low.astype(np.uint64)  # modulo 2**64, which holds every such distance


def distances(left: Array, right: Array) -> Array:
    """``|left - right|`` of integers (as unsigned 64-bit, exact) or of floats (as float64)."""
    if left.dtype.kind in "iu":
        return _distance(left, right)
    with np.errstate(all="ignore"):
        found: Array = np.abs(left.astype(np.float64) - right.astype(np.float64))
    return found
