"""Tells whether a contract value is finite, which its fingerprint cannot tell."""

from __future__ import annotations

import cmath
from typing import Any

import torch


def is_finite(held: Any) -> bool:
    """Whether a tensor or number holds neither NaN nor an infinity; what is no number counts as finite."""
    if isinstance(held, (float, complex)):
        return cmath.isfinite(held)
    if not isinstance(held, torch.Tensor) or not (held.is_floating_point() or held.is_complex()):
        return True
    if held.layout is not torch.strided:
        held = held.to_dense()
    if held.element_size() == 1:  # float8 types have no isfinite of their own
        held = held.float()
    return bool(torch.isfinite(held).all())
