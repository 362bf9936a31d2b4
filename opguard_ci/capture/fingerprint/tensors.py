"""The value of any tensor, however strange: strided, sparse, quantised, nested, conjugated, meta, on a device.

Never changes what it looks at and keeps nothing alive. What cannot be fingerprinted raises ``Unhashable`` with the
reason. Strided memory is read without calling an operator; where one is needed, no mode, no autograd and no autocast
of the user sees it. The value of a device tensor is a handle until the step's end (see ``fingerprint.cuda``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import cpu
from .cuda import DeviceFingerprints
from .quiet import Unhashable, quiet
from .strides import layout_of

_SPARSE_ROWS: Final = (torch.sparse_csr, torch.sparse_bsr)
_SPARSE_COLUMNS: Final = (torch.sparse_csc, torch.sparse_bsc)
_MAX_EXPANSION: Final = 1 << 28
"""An expanded tensor of more bytes than these is known by its distinct elements and how they repeat."""

_keys = torch._C._dispatch_keys
address: Callable[[torch.Tensor], int] = getattr(torch._C, "_data_address")  # noqa: B009 - not in its stubs
# of the storage's first byte; data_ptr() would copy the memory of a lazy clone
_HOST, _DEVICE, _STRANGE = range(3)
_kinds: dict[int, int] = {}  # by dispatch keys: whether such tensors are ordinary memory of the host or of a device


def value(tensor: torch.Tensor, devices: DeviceFingerprints) -> int:
    """The fingerprint of a tensor's content (see ``fingerprint.cpu``). Never 0. Raises ``Unhashable``."""
    number = _keys(tensor).raw_repr()
    kind = _kinds.get(number)
    if kind is None:
        kind = _kinds[number] = _kind_of(tensor)
    try:
        if kind:
            return devices.queue(tensor) if kind == _DEVICE else _strange(tensor, devices)
        nbytes = tensor.nbytes
        if not nbytes:
            return cpu.of_bytes(b"", tensor.dtype)
        pointer = address(tensor)
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


def values(tensors: list[torch.Tensor], devices: DeviceFingerprints) -> list[int]:
    """The values of the tensors of one call; those on a device share what they can."""
    on_device = [is_on_device(tensor) for tensor in tensors]
    if sum(on_device) < 2:
        return [value(tensor, devices) for tensor in tensors]
    together = devices.queue_all([tensor for tensor, here in zip(tensors, on_device, strict=True) if here])
    found = iter(together)
    return [next(found) if here else value(tensor, devices) for tensor, here in zip(tensors, on_device, strict=True)]


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor is ordinary memory of the host."""
    return _kind_of(tensor) == _HOST


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor is ordinary memory of a device."""
    number = _keys(tensor).raw_repr()
    kind = _kinds.get(number)
    if kind is None:
        kind = _kinds[number] = _kind_of(tensor)
    return kind == _DEVICE


def _kind_of(tensor: torch.Tensor) -> int:
    ordinary = (
        (tensor.is_cpu or tensor.is_cuda)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and not _keys(tensor).has(torch._C.DispatchKey.Python)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
    return _STRANGE if not ordinary else _HOST if tensor.is_cpu else _DEVICE


def _strided(tensor: torch.Tensor, pointer: int, flips: int = 0) -> int:
    shape: tuple[int, ...] = tensor.shape
    strides = tensor.stride()
    if tensor.nbytes > _MAX_EXPANSION and 0 in strides:
        shape, strides = layout_of(shape, strides)
        kept = [1 if stride == 0 else length for length, stride in zip(shape, strides, strict=True)]
        inner = cpu.of_strided(pointer, (tuple(kept), strides), tensor.dtype, flips)
        return cpu.of_text(f"expanded {shape} {tuple(kept)} {inner:x}")
    return cpu.of_strided(pointer, (shape, strides), tensor.dtype, flips)


def _strange(tensor: torch.Tensor, devices: DeviceFingerprints) -> int:
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        return cpu.of_text(f"meta {tensor.dtype} {tuple(tensor.shape)}")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise Unhashable("inside a functorch transform")
    if _keys(tensor).has(torch._C.DispatchKey.Python):
        return _wrapper(tensor, devices)
    if tensor.layout is torch.strided and tensor.is_cpu and not (tensor.is_nested or tensor.is_quantized):
        nbytes = tensor.nbytes
        if not nbytes:
            return cpu.of_bytes(b"", tensor.dtype)
        if tensor._is_zerotensor():
            return cpu.of_constant(bytes(tensor.itemsize), nbytes, tensor.dtype)
        pointer = address(tensor) + int(tensor.storage_offset()) * tensor.itemsize
        return _strided(tensor, pointer, tensor.is_neg() + 2 * tensor.is_conj())
    with quiet():
        return _by_parts(tensor, devices)


def _wrapper(tensor: torch.Tensor, devices: DeviceFingerprints) -> int:
    """A tensor subclass that handles its operators itself: what it wraps."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        raise Unhashable(f"{type(tensor).__qualname__} does not say what it wraps (__tensor_flatten__)")
    names, _ = flatten()
    parts = [getattr(tensor, name) for name in names]
    return _combine(type(tensor).__qualname__, [part for part in parts if isinstance(part, torch.Tensor)], devices)


def _by_parts(tensor: torch.Tensor, devices: DeviceFingerprints) -> int:
    """What lies in several pieces of memory, or on another device."""
    layout = tensor.layout
    if tensor.is_nested:
        return _combine("nested", [tensor._nested_tensor_size(), *tensor.unbind()], devices)
    if layout is torch.sparse_coo:
        return _combine("sparse_coo", [tensor._indices(), tensor._values()], devices)
    if layout in _SPARSE_ROWS:
        return _combine(str(layout), [tensor.crow_indices(), tensor.col_indices(), tensor.values()], devices)
    if layout in _SPARSE_COLUMNS:
        return _combine(str(layout), [tensor.ccol_indices(), tensor.row_indices(), tensor.values()], devices)
    if layout is not torch.strided:  # mkldnn and other opaque layouts
        return _combine(str(layout), [tensor.to_dense()], devices)
    if tensor.is_quantized:
        return _combine(f"quantized {_quantisation(tensor, devices)}", [tensor.int_repr()], devices)
    plain = tensor.detach().resolve_conj().resolve_neg()
    return value(plain if plain.is_cuda and not plain._is_zerotensor() else plain.cpu(), devices)


def _combine(kind: str, parts: list[torch.Tensor], devices: DeviceFingerprints) -> int:
    pieces: list[str | int] = [kind]
    for part in parts:
        pieces += [f" {part.dtype}{tuple(part.shape)}", value(part, devices)]
    return devices.queue_text(pieces)


def _quantisation(tensor: torch.Tensor, devices: DeviceFingerprints) -> str:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.qscheme()} {tensor.q_scale()!r} {tensor.q_zero_point()}"
    scales, zeros = tensor.q_per_channel_scales().cpu(), tensor.q_per_channel_zero_points().cpu()
    return f"{tensor.qscheme()} {tensor.q_per_channel_axis()} {value(scales, devices):x} {value(zeros, devices):x}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
