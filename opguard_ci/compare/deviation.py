"""How far two contract values lie apart, and whether a tolerance allows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tolerance import Tolerance
from ..trace.formats import Array, numbers, patterns, ulps


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far two values of one dtype and shape lie apart at most.

    ``max_ulp``, ``max_abs`` and ``max_rel`` are None where an element became, or was, infinite or NaN; ``max_rel``
    leaves out elements that are 0 in the reference. ``share``: of what the tolerance allows, the most that an element
    takes; at most 1 if and only if all are within it.
    """

    different: int
    elements: int
    max_ulp: int | None
    max_abs: float | None
    max_rel: float | None
    share: float

    @property
    def within(self) -> bool:
        """Whether the tolerance allows it."""
        return self.share <= 1


def deviation(reference: bytes, candidate: bytes, dtype: str, tolerance: Tolerance) -> Deviation:
    """Compare two values by the bytes of their numbers, in logical order, both of one real ``dtype``.

    The parts of a complex number are compared each for itself. An element that is infinite or NaN on one side and has
    other bits on the other is within no tolerance. -0 and 0 are the same number.
    """
    left, right = (patterns(np.frombuffer(data, np.uint8), dtype) for data in (reference, candidate))
    differs = left != right
    a, b = left[differs], right[differs]
    x, y = (numbers(bits, dtype).astype(np.float64) for bits in (a, b))
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        return Deviation(int(differs.sum()), len(left), None, None, None, np.inf)
    if not len(a):
        return Deviation(0, len(left), 0, 0.0, 0.0, 0.0)
    apart, size = ulps(a, b, dtype), np.abs(x)
    with np.errstate(all="ignore"):
        distance = np.abs(x - y)
        relative = distance[size > 0] / size[size > 0]
        shares = _shares(apart, distance, size, tolerance)
    return Deviation(
        different=len(a),
        elements=len(left),
        max_ulp=int(apart.max()),
        max_abs=_finite(distance.max()),
        max_rel=_finite(relative.max(initial=0.0)),
        share=float(shares.max()),
    )


def _shares(apart: Array, distance: Array, size: Array, tolerance: Tolerance) -> Array:
    """What each element takes of what is allowed."""
    if tolerance.ulp:
        shares: Array = apart / np.float64(tolerance.ulp)
        # Beyond 2**53 a quotient may be rounded down to 1.
        return np.where((shares <= 1) & (apart > np.uint64(tolerance.ulp)), np.inf, shares)
    limit = tolerance.atol + tolerance.rtol * size
    shares = np.where(distance == 0, 0.0, distance / limit)
    return np.where((shares <= 1) & (distance > limit), np.inf, shares)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
