"""The value of any tensor, however strange: strided, sparse, quantised, nested, conjugated, meta.

Never changes what it looks at and keeps nothing alive. What cannot be fingerprinted raises ``Unhashable`` with the
reason.
"""

from __future__ import annotations

import torch

from . import cpu

_SPARSE_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_SPARSE_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


class Unhashable(Exception):
    """A tensor whose content cannot be read; the message says why."""


def value(tensor: torch.Tensor) -> int:
    """The fingerprint of a tensor's content (see ``fingerprint.cpu``). Never 0. Raises ``Unhashable``."""
    if (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    ):
        nbytes = tensor.nbytes
        if nbytes == 0:
            return cpu.of_bytes(b"", tensor.dtype)
        pointer = tensor.data_ptr()
        if pointer:
            return cpu.of_memory(pointer, nbytes, tensor.dtype)
    try:
        return _slow(tensor)
    except Unhashable:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError, MemoryError) as error:
        raise Unhashable(f"{tensor.layout} {tensor.dtype} on {tensor.device.type}: {_first_line(error)}") from error


def _slow(tensor: torch.Tensor) -> int:
    if tensor.is_meta:
        return cpu.of_text(f"meta {tensor.dtype} {tuple(tensor.shape)}")
    if tensor.is_nested:
        return _combine(
            "nested",
            [tensor._nested_tensor_size(), tensor.values() if tensor.layout is torch.jagged else _buffer(tensor)],
        )
    if tensor.layout is torch.sparse_coo:
        return _combine("sparse_coo", [tensor._indices(), tensor._values()])
    if tensor.layout in _SPARSE_ROWS:
        return _combine(str(tensor.layout), [tensor.crow_indices(), tensor.col_indices(), tensor.values()])
    if tensor.layout in _SPARSE_COLUMNS:
        return _combine(str(tensor.layout), [tensor.ccol_indices(), tensor.row_indices(), tensor.values()])
    if tensor.layout is not torch.strided:  # mkldnn and other opaque layouts
        return _combine(str(tensor.layout), [tensor.to_dense()])
    if tensor.is_quantized:
        return _combine(f"quantized {_quantisation(tensor)}", [tensor.int_repr()])
    plain = tensor.detach()
    if plain._is_zerotensor():
        plain = plain.clone()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if plain.numel() == 0:
        return cpu.of_bytes(b"", plain.dtype)
    if _is_huge_expansion(plain):
        return _combine(f"expanded {tuple(plain.shape)} {plain.stride()}", [_compact(plain)])
    plain = plain.cpu().contiguous()
    pointer = plain.data_ptr()
    if not pointer:
        raise Unhashable(f"{plain.dtype} tensor without memory")
    return cpu.of_memory(pointer, plain.nbytes, plain.dtype)


def _combine(kind: str, parts: list[torch.Tensor]) -> int:
    return cpu.of_text(" ".join([kind, *(f"{part.dtype}{tuple(part.shape)}{value(part):x}" for part in parts)]))


def _buffer(tensor: torch.Tensor) -> torch.Tensor:
    """The flat memory of a strided nested tensor."""
    return torch.cat([part.reshape(-1) for part in tensor.detach().unbind()]) if tensor.size(0) else torch.empty(0)


def _quantisation(tensor: torch.Tensor) -> str:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.qscheme()} {tensor.q_scale()!r} {tensor.q_zero_point()}"
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return f"{tensor.qscheme()} {tensor.q_per_channel_axis()} {value(scales):x} {value(zeros):x}"


def _is_huge_expansion(tensor: torch.Tensor) -> bool:
    """Whether materialising would take far more memory than the tensor has (a huge ``expand``)."""
    return tensor.nbytes > 1 << 24 and tensor.nbytes > 2 * tensor.untyped_storage().nbytes()


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor with one element where the stride is 0."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
