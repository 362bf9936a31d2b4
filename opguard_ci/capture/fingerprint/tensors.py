"""The value of any tensor, however strange: strided, sparse, quantised, nested, conjugated, meta.

Never changes what it looks at and keeps nothing alive. What cannot be fingerprinted raises ``Unhashable`` with the
reason. Strided memory is read without calling an operator; where one is needed, no mode, no autograd and no autocast
of the user sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from . import cpu

_SPARSE_ROWS: Final = (torch.sparse_csr, torch.sparse_bsr)
_SPARSE_COLUMNS: Final = (torch.sparse_csc, torch.sparse_bsc)
_MAX_EXPANSION: Final = 1 << 28
"""An expanded tensor of more bytes than these is known by its distinct elements and its shape."""

_keys = torch._C._dispatch_keys
_address: Callable[[torch.Tensor], int] = getattr(torch._C, "_data_address")  # noqa: B009 - not in its stubs
# of the storage's first byte; data_ptr() would copy the memory of a lazy clone
_plain: dict[int, bool] = {}  # by dispatch keys: whether such tensors are ordinary host memory


class Unhashable(Exception):
    """A tensor whose content cannot be read; the message says why."""


def value(tensor: torch.Tensor) -> int:
    """The fingerprint of a tensor's content (see ``fingerprint.cpu``). Never 0. Raises ``Unhashable``."""
    number = _keys(tensor).raw_repr()
    plain = _plain.get(number)
    if plain is None:
        plain = _plain[number] = _is_plain(tensor)
    try:
        if not plain:
            return _strange(tensor)
        nbytes = tensor.nbytes
        if not nbytes:
            return cpu.of_bytes(b"", tensor.dtype)
        pointer = _address(tensor)
        if not pointer:
            raise Unhashable(f"{tensor.dtype} tensor without memory")
        pointer += int(tensor.storage_offset()) * tensor.itemsize
        if tensor.is_contiguous():
            return cpu.of_memory(pointer, nbytes, tensor.dtype)
        return _strided(tensor, pointer)
    except Unhashable:
        raise
    except Exception as error:
        raise Unhashable(f"{tensor.layout} {tensor.dtype} on {tensor.device.type}: {_first_line(error)}") from error


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and not _keys(tensor).has(torch._C.DispatchKey.Python)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _strided(tensor: torch.Tensor, pointer: int, flips: int = 0) -> int:
    shape, strides = tensor.shape, tensor.stride()
    if tensor.nbytes > _MAX_EXPANSION and 0 in strides:
        kept = [1 if stride == 0 else length for length, stride in zip(shape, strides, strict=True)]
        inner = cpu.of_strided(pointer, (kept, strides), tensor.dtype, flips)
        return cpu.of_text(f"expanded {tuple(shape)} {tuple(kept)} {inner:x}")
    return cpu.of_strided(pointer, (shape, strides), tensor.dtype, flips)


def _strange(tensor: torch.Tensor) -> int:
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        return cpu.of_text(f"meta {tensor.dtype} {tuple(tensor.shape)}")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise Unhashable("inside a functorch transform")
    if _keys(tensor).has(torch._C.DispatchKey.Python):
        return _wrapper(tensor)
    if tensor.layout is torch.strided and tensor.is_cpu and not (tensor.is_nested or tensor.is_quantized):
        nbytes = tensor.nbytes
        if not nbytes:
            return cpu.of_bytes(b"", tensor.dtype)
        if tensor._is_zerotensor():
            return cpu.of_constant(bytes(tensor.itemsize), nbytes, tensor.dtype)
        pointer = _address(tensor) + int(tensor.storage_offset()) * tensor.itemsize
        return _strided(tensor, pointer, tensor.is_neg() + 2 * tensor.is_conj())
    with quiet():
        return _by_parts(tensor)


def _wrapper(tensor: torch.Tensor) -> int:
    """A tensor subclass that handles its operators itself: what it wraps."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        raise Unhashable(f"{type(tensor).__qualname__} does not say what it wraps (__tensor_flatten__)")
    names, _ = flatten()
    return _combine(type(tensor).__qualname__, [getattr(tensor, name) for name in names])


def _by_parts(tensor: torch.Tensor) -> int:
    """What lies in several pieces of memory, or on another device."""
    layout = tensor.layout
    if tensor.is_nested:
        return _combine("nested", [tensor._nested_tensor_size(), *tensor.unbind()])
    if layout is torch.sparse_coo:
        return _combine("sparse_coo", [tensor._indices(), tensor._values()])
    if layout in _SPARSE_ROWS:
        return _combine(str(layout), [tensor.crow_indices(), tensor.col_indices(), tensor.values()])
    if layout in _SPARSE_COLUMNS:
        return _combine(str(layout), [tensor.ccol_indices(), tensor.row_indices(), tensor.values()])
    if layout is not torch.strided:  # mkldnn and other opaque layouts
        return _combine(str(layout), [tensor.to_dense()])
    if tensor.is_quantized:
        return _combine(f"quantized {_quantisation(tensor)}", [tensor.int_repr()])
    return value(tensor.detach().resolve_conj().resolve_neg().cpu())


@contextmanager
def quiet() -> Iterator[None]:
    """Call operators of our own so that nothing of the user's hears of them."""
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch._C._DisableFuncTorch())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(torch._C._DisableAutocast())
        yield


def _combine(kind: str, parts: list[torch.Tensor]) -> int:
    return cpu.of_text(" ".join([kind, *(f"{part.dtype}{tuple(part.shape)}{value(part):x}" for part in parts)]))


def _quantisation(tensor: torch.Tensor) -> str:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.qscheme()} {tensor.q_scale()!r} {tensor.q_zero_point()}"
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return f"{tensor.qscheme()} {tensor.q_per_channel_axis()} {value(scales):x} {value(zeros):x}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
