"""A square root that is the same on every CPU.

MKL's float32 vector square root is not correctly rounded on the path that the CPU pins leave open, and differs between
AMD and Intel; with it every Adam variant but the fused one. Computing in float64 and rounding once is exact: 53 bits
are more than the 2 * 24 + 2 that make double rounding harmless for a square root.
"""

from __future__ import annotations

import warnings

import torch

_libraries: list[torch.library.Library] = []  # an override lasts as long as its Library object


def installed() -> bool:
    """Whether ``aten::sqrt`` is overridden in this process."""
    return bool(_libraries)


def install_sqrt() -> None:
    """Overrides ``aten::sqrt`` on the CPU, for all callers including ``_foreach_sqrt`` and autograd."""
    if _libraries:
        return
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verriding a previously registered kernel")
        library.impl("sqrt", _sqrt, "CPU")
        library.impl("sqrt_", _sqrt_in_place, "CPU")
        library.impl("sqrt.out", _sqrt_out, "CPU")
    _libraries.append(library)


def _sqrt(tensor: torch.Tensor) -> torch.Tensor:
    # pow(0.5) is the same kernel under another name, so that the override does not call itself.
    if tensor.dtype.is_complex or tensor.dtype is torch.float64:
        return tensor.pow(0.5)
    dtype = tensor.dtype if tensor.dtype.is_floating_point else torch.get_default_dtype()
    return tensor.double().pow(0.5).to(dtype)


def _sqrt_in_place(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.copy_(_sqrt(tensor))


def _sqrt_out(tensor: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    result = _sqrt(tensor)
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)
