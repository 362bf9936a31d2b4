"""The tensors in the result of a call, in the order of their slots."""

from __future__ import annotations

from typing import Any

import torch


def slots_of(returns: frozenset[int], result: Any) -> frozenset[int]:
    """The slots of the tensors that returns of these numbers hold; some may hold none, or many."""
    slots: list[int] = []
    outputs: list[torch.Tensor] = []
    for number, one in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
        first = len(outputs)
        collect(one, outputs)
        if number in returns:
            slots += range(first, len(outputs))
    return frozenset(slots)


def collect(result: Any, into: list[torch.Tensor]) -> None:
    """Add the tensors of a result to a list, in order."""
    if isinstance(result, torch.Tensor):
        into.append(result)
    elif isinstance(result, (tuple, list)):
        for item in result:
            collect(item, into)
