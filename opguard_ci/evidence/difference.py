"""How much two tensors differ: where, by how many ULPs, in which bits. Pure numpy, no torch.

Elements differ when their bits do: -0 and 0, and NaNs of different payload, are different elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..trace.formats import COMPLEX, FLOATS, INTEGERS, ITEMSIZE, Array, distances, numbers, patterns, ulps
from .rows import changed_rows

MAX_FIRST: Final = 4
"""So many elements are shown with their values."""
_MAP_ROWS, _MAP_COLUMNS = 16, 48


@dataclass(frozen=True, slots=True)
class Content:
    """A tensor as it was saved: its elements' bytes in logical order, one ``uint8`` each."""

    dtype: str
    shape: tuple[int, ...]
    data: Array

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


def difference(reference: Content, candidate: Content) -> dict[str, Any]:
    """What differs between two tensors.

    Always ``dtype`` and ``shape`` (the candidate's), ``different`` and ``elements``, ``max_ulp`` and ``max_abs``; null
    where they mean nothing for these tensors. ``docs/evidence.md`` describes all keys.
    """
    found: dict[str, Any] = {
        "dtype": candidate.dtype,
        "shape": list(candidate.shape),
        "different": None,
        "elements": candidate.elements,
        "max_ulp": None,
        "max_abs": None,
    }
    if reference.dtype != candidate.dtype:
        found["reference_dtype"] = reference.dtype
    if reference.shape != candidate.shape:
        found["reference_shape"] = list(reference.shape)
        return {**found, "note": "the shapes differ, so elements have no counterparts"}
    if reference.dtype != candidate.dtype:
        return {**found, **_as_numbers(reference, candidate)}
    return {**found, **_same_kind(reference, candidate)}


def _as_numbers(reference: Content, candidate: Content) -> dict[str, Any]:
    """Tensors of two dtypes, compared by the numbers that their elements stand for."""
    if not all(c.dtype in FLOATS or c.dtype in INTEGERS or c.dtype == "bool" for c in (reference, candidate)):
        return {"note": "the dtypes differ, and their elements cannot be compared as numbers"}
    with np.errstate(invalid="ignore"):  # signalling NaNs
        left, right = (numbers(patterns(c.data, c.dtype), c.dtype).astype(np.float64) for c in (reference, candidate))
    differs = (left != right) & ~(np.isnan(left) & np.isnan(right))
    where = np.flatnonzero(differs)
    found: dict[str, Any] = {"different": int(where.size), "note": "the dtypes differ: compared as numbers"}
    if where.size:
        finite = np.isfinite(left[where]) & np.isfinite(right[where])
        a, b = left[where][finite], right[where][finite]
        found.update(_magnitudes(distances(a, b), np.abs(a)))
        found["region"] = region(where, candidate.shape)
        found["map"] = density(where, candidate.shape)
        found["first"] = [
            {"index": _index(n, candidate.shape), "reference": repr(float(left[n])), "candidate": repr(float(right[n]))}
            for n in where[:MAX_FIRST]
        ]
    return found


def _same_kind(reference: Content, candidate: Content) -> dict[str, Any]:
    dtype = candidate.dtype
    parts = 2 if dtype in COMPLEX else 1
    part = COMPLEX.get(dtype, dtype)
    left, right = patterns(reference.data, dtype), patterns(candidate.data, dtype)
    unequal = left != right
    if dtype not in ITEMSIZE:  # a dtype of tomorrow: bytes, as many to an element as there are
        parts = max(1, left.size // max(candidate.elements, 1))
    differs = unequal.reshape(-1, parts).any(1) if parts > 1 else unequal
    where = np.flatnonzero(differs)
    found: dict[str, Any] = {"different": int(where.size)}
    if not where.size:
        return found
    a, b = (bits.reshape(-1, parts)[where] for bits in (left, right))
    found["region"] = region(where, candidate.shape)
    found["map"] = density(where, candidate.shape)
    if candidate.shape and (rows := changed_rows(left, right, candidate.shape[0])) is not None:
        found["rows"] = rows
    found["flips"] = _flips(a, b, part)
    if part in ITEMSIZE:
        x, y = numbers(np.ascontiguousarray(a), part), numbers(np.ascontiguousarray(b), part)
        found.update(_measures((a, b), (x, y), part))
        found["first"] = [
            {
                "index": _index(n, candidate.shape),
                "reference": _text(x[row], part),
                "candidate": _text(y[row], part),
                "bits": [_hex(a[row], part), _hex(b[row], part)],
            }
            for row, n in enumerate(where[:MAX_FIRST])
        ]
    return found


def _measures(bits: tuple[Array, Array], values: tuple[Array, Array], dtype: str) -> dict[str, Any]:
    """Distances of the elements that differ; those with NaN or infinity are counted and otherwise left out."""
    x, y = values
    if dtype == "bool":
        return {}
    if dtype in INTEGERS:
        return _magnitudes(distances(x, y).ravel(), np.abs(x.astype(np.float64)).ravel())
    found: dict[str, Any] = {}
    odd = {
        name: [int(test(side).any(1).sum()) for side in (x, y)] for name, test in (("nan", np.isnan), ("inf", np.isinf))
    }
    if any(map(any, odd.values())):
        found["nonfinite"] = odd
    finite = (np.isfinite(x) & np.isfinite(y)).all(1)
    if finite.any():
        apart = ulps(bits[0][finite], bits[1][finite], dtype).max(1)
        found["max_ulp"] = int(apart.max())
        found["median_ulp"] = _number(float(np.median(apart)))
        with np.errstate(all="ignore"):
            gaps, sizes = distances(x[finite], y[finite]), np.abs(x[finite].astype(np.float64))
            if x.shape[1] > 1:
                gaps, sizes = np.hypot(*gaps.T), np.hypot(*sizes.T)
        found.update(_magnitudes(gaps.ravel(), sizes.ravel()))
    return found


def _magnitudes(gaps: Array, sizes: Array) -> dict[str, Any]:
    """The largest absolute distance, and the largest one relative to a reference that is not 0."""
    found: dict[str, Any] = {}
    if gaps.size:
        largest = gaps.max()
        found["max_abs"] = int(largest) if gaps.dtype.kind == "u" else _number(float(largest))
        if (nonzero := sizes > 0).any():
            with np.errstate(all="ignore"):
                found["max_rel"] = _number(float((gaps[nonzero].astype(np.float64) / sizes[nonzero]).max()))
    return found


def _flips(left: Array, right: Array, dtype: str) -> dict[str, Any]:
    """In how many elements each bit differs, by number from the lowest, and by field of a float."""
    changed = left ^ right
    one = changed.dtype.type(1)
    bits = {}
    for bit in range(changed.dtype.itemsize * 8):
        count = int(((changed >> changed.dtype.type(bit)) & one).any(1).sum())
        if count:
            bits[bit] = count
    found: dict[str, Any] = {"bits": {str(bit): count for bit, count in bits.items()}}
    if dtype in FLOATS:
        masks = dict.fromkeys(("sign", "exponent", "mantissa"), 0)
        for bit in range(FLOATS[dtype].bits):
            masks[FLOATS[dtype].field(bit)] |= 1 << bit
        found["fields"] = {
            name: int((changed & changed.dtype.type(mask) != 0).any(1).sum()) for name, mask in masks.items()
        }
    powers = (changed & (changed - one)) == 0  # at most one bit set
    found["single_bit"] = int((powers.all(1) & ((changed != 0).sum(1) == 1)).sum())
    if (changed == changed[0]).all():
        found["xor"] = "/".join(_hex(changed[0], dtype).split())
    return found


# Where


def region(where: Array, shape: Sequence[int]) -> dict[str, Any]:
    """The box around the differing elements, as half-open ranges, and in how many rows (of the first axis) they lie."""
    if not shape:
        return {"box": [], "rows": 1, "of_rows": 1}
    places = np.unravel_index(where, tuple(shape))
    box = [[int(axis.min()), int(axis.max()) + 1] for axis in places]
    return {"box": box, "rows": int(np.unique(places[0]).size), "of_rows": int(shape[0])}


def density(where: Array, shape: Sequence[int]) -> dict[str, Any]:
    """A map of the differing elements: the tensor as (all other axes, last axis), in a grid of at most 16 x 48 cells.

    ``cells[r][c]`` counts the differing elements of a cell; ``rows`` and ``columns`` are the tensor's.
    """
    columns = int(shape[-1]) if shape else 1
    rows = math.prod(shape[:-1]) if shape else 1
    grid = (min(rows, _MAP_ROWS), min(columns, _MAP_COLUMNS))
    row, column = np.divmod(where, columns)
    cells = np.bincount((row * grid[0] // rows) * grid[1] + column * grid[1] // columns, minlength=grid[0] * grid[1])
    return {"rows": rows, "columns": columns, "cells": cells.reshape(grid).tolist()}


def _index(number: int, shape: Sequence[int]) -> list[int]:
    return [int(place) for place in np.unravel_index(number, tuple(shape))] if shape else []


# In words


def _number(value: float) -> float | int | None:
    """A number as JSON has it: whole ones without a fraction, none where it is not finite."""
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _text(values: Array, dtype: str) -> str:
    """An element as text that is short and exact."""
    parts = [str(value) if dtype in INTEGERS or dtype == "bool" else _float_text(value) for value in values]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _float_text(value: Any) -> str:
    plain = 1e-4 <= abs(float(value)) < 1e6
    return np.format_float_positional(value, unique=True, trim="-") if plain else str(value)


def _hex(bits: Array, dtype: str) -> str:
    return " ".join(f"0x{int(pattern):0{bits.dtype.itemsize * 2}x}" for pattern in bits)
