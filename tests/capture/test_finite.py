from __future__ import annotations

from typing import Any

import pytest
import torch

from opguard_ci.capture.finite import is_finite

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "held",
    [
        1.0,
        3,
        "nan",
        None,
        True,
        torch.tensor([1, 2]),
        torch.tensor([1.0, -0.0]),
        torch.zeros(0),
        torch.eye(2).to_sparse(),
        torch.ones(2, dtype=torch.float8_e4m3fn),
    ],
)
def test_finite(held: Any) -> None:
    """Numbers, whole or not, empty and sparse tensors, and what is no number."""
    assert is_finite(held)


@pytest.mark.parametrize(
    "held",
    [
        NAN,
        -INF,
        complex(0, NAN),
        torch.tensor([1.0, NAN]),
        torch.tensor([INF], dtype=torch.bfloat16),
        torch.tensor([1 + 1j * INF]),
        torch.tensor([[0.0, NAN]]).to_sparse(),
        torch.tensor([[0.0, INF]]).to_sparse_csr(),
        torch.tensor([NAN]).to(torch.float8_e4m3fn),
    ],
)
def test_not_finite(held: Any) -> None:
    """One NaN or infinity in a value of any layout or width."""
    assert not is_finite(held)
