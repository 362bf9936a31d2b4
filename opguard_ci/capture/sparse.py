"""What a sparse tensor consists of: tensors with memory of their own."""

from __future__ import annotations

import torch

from .fingerprint.quiet import quiet

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
    """(values, indices) of a sparse tensor; None of any other, and of a wrapper around one."""
    layout = tensor.layout
    if layout is torch.strided or tensor.is_meta or torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    with quiet():
        if layout is torch.sparse_coo:
            return tensor._values(), [tensor._indices()]
        if layout in _COMPRESSED:
            return tensor.values(), [getattr(tensor, name)() for name in _COMPRESSED[layout]]
    return None
