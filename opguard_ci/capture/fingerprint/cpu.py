"""Fingerprints of host memory: XXH3 over the logical contiguous bytes, told apart by dtype.

The value of a tensor is the fingerprint of its bytes in logical order, whatever its strides, offset or alignment,
mixed with a constant of its dtype. Shape is not part of it (a reshape keeps the value) but the number of bytes is.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
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
_CHUNK: Final = 1 << 22
"""Bytes of a strided tensor that are copied at a time."""
_WORDS: Final = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides, in elements."""
_Seen = tuple[Any, tuple[int, ...], str, tuple[int, ...], bool]

digest: Final[Callable[[Any], int]] = xxhash.xxh3_64_intdigest
_salts: dict[torch.dtype, int] = {}
_buffers: dict[int, Any] = {}
_layouts: dict[tuple[Layout, torch.dtype], _Seen] = {}
_permuted: dict[tuple[int, Layout, torch.dtype, int], int] = {}  # values of dense tensors, by their bytes in memory
_blocks: dict[bytes, memoryview] = {}  # kept: freed ones would be what a program's empty memory holds
_constants: dict[tuple[torch.dtype, int], frozenset[int]] = {}


def salt(dtype: torch.dtype) -> int:
    """The 64-bit constant that tells equal bytes of different dtypes apart."""
    number = _salts.get(dtype)
    if number is None:
        number = _salts[dtype] = int(digest(str(dtype).encode()))
    return number


def of_bytes(data: bytes, dtype: torch.dtype) -> int:
    """The fingerprint of raw little-endian bytes seen as ``dtype``. Never 0."""
    return (int(digest(data)) ^ salt(dtype)) or 1


def of_text(text: str) -> int:
    """The fingerprint of something that is no tensor (a number, a spec)."""
    return int(digest(text.encode("utf-8", "surrogatepass"))) or 1


def of_memory(pointer: int, nbytes: int, dtype: torch.dtype) -> int:
    """The fingerprint of ``nbytes`` bytes of host memory. Never 0."""
    make = _buffers.get(nbytes) or buffer(nbytes)
    return (digest(make(pointer)) ^ (_salts.get(dtype) or salt(dtype))) or 1


def buffer(nbytes: int) -> Any:
    """A function from an address to a buffer of so many bytes."""
    if len(_buffers) > 4096:
        _buffers.clear()
    made = _buffers[nbytes] = (ctypes.c_char * nbytes).from_address
    return made


def of_strided(pointer: int, layout: Layout, dtype: torch.dtype, flips: int = 0) -> int:
    """The fingerprint of the elements of a strided tensor in logical order, copied a piece at a time. Never 0.

    ``layout``: shape and strides, in elements. ``flips``: 1 to negate each element, 2 to conjugate, 3 for both.
    """
    make, shape, words_type, steps, is_dense = _layouts.get((layout, dtype)) or _layout(layout, dtype)
    held = make(pointer)
    if not is_dense:
        return _of_words(np.ndarray(shape, words_type, held, 0, steps), dtype, flips)
    # Transposed weights and activations come by several times a step, and to copy them takes twenty times as long as to
    # hash them as they lie: equal bytes in memory are equal bytes in logical order.
    key = (digest(held), layout, dtype, flips)
    found = _permuted.get(key)
    if found is None:
        if len(_permuted) > 4096:
            _permuted.clear()
        found = _permuted[key] = _of_words(np.ndarray(shape, words_type, held, 0, steps), dtype, flips)
    return found


def _of_words(words: npt.NDArray[Any], dtype: torch.dtype, flips: int) -> int:
    if not flips and words.nbytes <= _CHUNK:
        return (digest(words.tobytes()) ^ salt(dtype)) or 1
    state: Any = xxhash.xxh3_64()
    for piece in _pieces(words):
        copied = np.ascontiguousarray(piece)
        state.update(_flipped(copied, dtype, flips) if flips else copied)
    return (int(state.intdigest()) ^ salt(dtype)) or 1


def _layout(layout: Layout, dtype: torch.dtype) -> _Seen:
    """How numpy sees such a tensor: function from address to buffer, shape, type, strides in bytes, whether dense."""
    shape, strides = layout
    size = dtype.itemsize
    span = size * (1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)))
    if len(_layouts) > 4096:
        _layouts.clear()
    steps = tuple(stride * size for stride in strides)
    is_dense = span == size * math.prod(shape) and 0 not in strides
    made = _layouts[layout, dtype] = (buffer(span), tuple(shape), _WORDS[size], steps, is_dense)
    return made


def _pieces(words: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The array in pieces of about ``_CHUNK`` bytes, in logical order."""
    if words.nbytes <= _CHUNK or not words.ndim:
        yield words
        return
    rows = _CHUNK // max(1, math.prod(words.shape[1:]) * words.itemsize)
    if rows:
        for first in range(0, len(words), rows):
            yield words[first : first + rows]
        return
    for row in words:
        yield from _pieces(row)


def _flipped(words: npt.NDArray[Any], dtype: torch.dtype, flips: int) -> npt.NDArray[Any]:
    """A copy with the sign bits flipped that a lazy negation (1) or conjugation (2) stands for."""
    width = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    parts = np.frombuffer(words.tobytes(), _WORDS[width]).copy()
    sign = parts.dtype.type(1 << (8 * width - 1))
    if flips & 1:
        parts ^= sign
    if flips & 2:
        parts[1::2] ^= sign
    return parts


def of_constant(pattern: bytes, nbytes: int, dtype: torch.dtype) -> int:
    """The fingerprint of ``nbytes`` bytes of a repeated pattern, made without holding them. Never 0."""
    block = _blocks.get(pattern)
    if block is None:
        block = _blocks[pattern] = memoryview(pattern * max(1, _BLOCK // len(pattern)))
    state = xxhash.xxh3_64()
    for _ in range(nbytes // len(block)):
        state.update(block)
    state.update(block[: nbytes % len(block)])
    return (int(state.intdigest()) ^ salt(dtype)) or 1


def constants(dtype: torch.dtype, nbytes: int) -> frozenset[int]:
    """The fingerprints of the tensors of this dtype and size whose elements are all 0, or all 1."""
    key = (dtype, nbytes)
    known = _constants.get(key)
    if known is None:
        if len(_constants) > 4096:
            _constants.clear()
        wanted = patterns(dtype) if nbytes <= _MAX_CONSTANT else ()
        known = _constants[key] = frozenset(of_constant(pattern, nbytes, dtype) for pattern in wanted)
    return known


def patterns(dtype: torch.dtype) -> tuple[bytes, ...]:
    """The bytes of a 0 and, where we know it, of a 1."""
    return tuple(pattern for pattern in (bytes(dtype.itemsize), _one(dtype)) if pattern)


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
