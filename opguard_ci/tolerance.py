"""How far a contract value may be from the reference's: ``@recipe(tolerance={"loss": ulp(2)})``. Pure, no numpy."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

_FIELDS: Final = ("ulp", "rtol", "atol")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element may be ``ulp`` numbers of its dtype away, or ``atol + rtol * |reference|``, whichever allows more."""

    ulp: int = 0
    rtol: float = 0.0
    atol: float = 0.0

    def __str__(self) -> str:
        if self.ulp:
            return f"ulp({self.ulp})"
        if not self.rtol:
            return f"atol({self.atol:g})"
        return f"rtol({self.rtol:g}, atol={self.atol:g})" if self.atol else f"rtol({self.rtol:g})"

    def to_json(self) -> dict[str, int | float]:
        """What is not 0, by name."""
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name)}


def ulp(number: int) -> Tolerance:
    """Allow ``number`` units in the last place: so many numbers of the value's own dtype."""
    if type(number) is not int or number < 1:
        raise ValueError(f"ulp() takes a whole number from 1, not {number!r}")
    return Tolerance(ulp=number)


def rtol(fraction: float, *, atol: float = 0.0) -> Tolerance:
    """Allow ``atol + fraction * |reference|`` (finite, above 0). Near 0 only ``atol`` allows anything."""
    return Tolerance(rtol=_positive("rtol", fraction), atol=_positive("atol", atol) if atol else 0.0)


def atol(distance: float) -> Tolerance:
    """Allow an absolute distance (finite, above 0)."""
    return Tolerance(atol=_positive("atol", distance))


def parse_tolerances(found: Any) -> dict[str, Tolerance]:
    """What ``to_json`` wrote, by pattern. ``ValueError`` for anything else: a manifest may be a stranger's."""
    if not isinstance(found, dict):
        raise ValueError("is no object")
    parsed = {}
    for pattern, limits in found.items():
        if not isinstance(limits, dict) or not limits or not limits.keys() <= set(_FIELDS):
            raise ValueError(f"has no limits for {pattern!r}")
        values = {name: _positive(name, value) for name, value in limits.items()}
        if "ulp" in values:
            if len(values) > 1:
                raise ValueError(f"has limits of two kinds for {pattern!r}")
            parsed[pattern] = ulp(limits["ulp"])
        else:
            parsed[pattern] = Tolerance(rtol=values.get("rtol", 0.0), atol=values.get("atol", 0.0))
    return parsed


def matching(patterns: Mapping[str, _T], name: str) -> tuple[str, _T] | None:
    """The first pattern, in the order written, that a name fits (``*``: any letters, dots too), with what it holds."""
    return next(((p, held) for p, held in patterns.items() if fnmatch.fnmatchcase(name, p)), None)


def shown(limits: Mapping[str, Tolerance]) -> str:
    """Tolerances as a phrase: ``loss ulp(2), model.* rtol(1e-06)``."""
    return ", ".join(f"{pattern} {limit}" for pattern, limit in limits.items())


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")
    return float(value)
