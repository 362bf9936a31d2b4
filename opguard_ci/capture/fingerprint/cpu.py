"""Fingerprints of CPU tensors: XXH3 over the logical contiguous bytes, told apart by dtype.

The value of a tensor is the fingerprint of its bytes in logical order, whatever its strides, offset or alignment,
mixed with a constant of its dtype. Shape is not part of it (a reshape keeps the value) but the number of bytes is.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

import torch
import xxhash

SCHEME: Final = "xxh3-64/1"
"""Id of this scheme; values of different schemes are never compared."""

EXACT_INTEGERS: Final = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    }
)

_MAX_CONSTANT: Final = 1 << 28
"""Larger tensors are not asked whether they are constant; they are no less compared."""
_BLOCK: Final = 1 << 16

_salts: dict[torch.dtype, int] = {}
_array_types: dict[int, type[ctypes.Array[ctypes.c_char]]] = {}
_constants: dict[tuple[torch.dtype, int], frozenset[int]] = {}


def salt(dtype: torch.dtype) -> int:
    """The 64-bit constant that tells equal bytes of different dtypes apart."""
    number = _salts.get(dtype)
    if number is None:
        number = _salts[dtype] = int(xxhash.xxh3_64_intdigest(str(dtype).encode()))
    return number


def of_bytes(data: bytes, dtype: torch.dtype) -> int:
    """The fingerprint of raw little-endian bytes seen as ``dtype``. Never 0."""
    return (int(xxhash.xxh3_64_intdigest(data)) ^ salt(dtype)) or 1


def of_text(text: str) -> int:
    """The fingerprint of something that is no tensor (a number, a spec)."""
    return int(xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))) or 1


def of_memory(pointer: int, nbytes: int, dtype: torch.dtype) -> int:
    """The fingerprint of ``nbytes`` bytes of host memory. Never 0."""
    kind = _array_types.get(nbytes)
    if kind is None:
        if len(_array_types) > 4096:
            _array_types.clear()
        kind = _array_types[nbytes] = ctypes.c_char * nbytes
    return (int(xxhash.xxh3_64_intdigest(kind.from_address(pointer))) ^ (_salts.get(dtype) or salt(dtype))) or 1


def is_constant(value: int, dtype: torch.dtype, nbytes: int) -> bool:
    """Whether ``value`` is that of a tensor of this dtype and size with all elements 0 or all 1."""
    key = (dtype, nbytes)
    known = _constants.get(key)
    if known is None:
        if len(_constants) > 4096:
            _constants.clear()
        known = _constants[key] = _constant_values(dtype, nbytes)
    return value in known


def _constant_values(dtype: torch.dtype, nbytes: int) -> frozenset[int]:
    if nbytes > _MAX_CONSTANT:
        return frozenset()
    return frozenset(_repeated(pattern, nbytes, dtype) for pattern in (bytes(dtype.itemsize), _one(dtype)) if pattern)


def _repeated(pattern: bytes, nbytes: int, dtype: torch.dtype) -> int:
    """The fingerprint of ``nbytes`` bytes of a repeated pattern, made without holding them."""
    block = pattern * max(1, min(nbytes, _BLOCK) // len(pattern))
    state = xxhash.xxh3_64()
    for _ in range(nbytes // len(block)):
        state.update(block)
    state.update(block[: nbytes % len(block)])
    return (int(state.intdigest()) ^ salt(dtype)) or 1


def _one(dtype: torch.dtype) -> bytes:
    if dtype in EXACT_INTEGERS:
        return (1).to_bytes(dtype.itemsize, "little")
    patterns = {
        torch.float64: struct.pack("<d", 1.0),
        torch.float32: struct.pack("<f", 1.0),
        torch.float16: struct.pack("<e", 1.0),
        torch.bfloat16: struct.pack("<f", 1.0)[2:],
        torch.complex64: struct.pack("<ff", 1.0, 0.0),
        torch.complex128: struct.pack("<dd", 1.0, 0.0),
    }
    return patterns.get(dtype, b"")
