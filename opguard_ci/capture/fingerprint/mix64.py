"""The fingerprint of device tensors: a sum over all 8-byte words of a mix of word and place. Plain torch and numpy.

The bytes of a tensor, contiguous and in logical order, are read as little-endian words ``w[0], w[1], …``, the last one
filled up with zeros. The raw sum is ``sum(mix(w[i] ^ (i + 1) * WEYL))`` modulo 2**64, where ``mix`` is a bijection of
64 bits: three times "fold the upper half onto the lower, multiply by an odd constant", and a last fold. Because it is
a bijection, a change in one word always changes the sum. Because it is a sum of integers, it comes out the same in
whatever order the words are added, by whatever number of threads. The value is a mix of raw sum, number of bytes and
a constant of the dtype and of this scheme.

``raw`` and ``value`` here are slow and short; ``cuda_kernel`` computes the same on the device in one pass.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import xxhash

SCHEME: Final = "mix64/1"
"""Id of this scheme; values of different schemes are never compared."""

WORD: Final = 8
"""Bytes of a word."""

WEYL: Final = 0x9E3779B97F4A7C15
FACTORS: Final = (0xD6E8FEB86659FD93, 0xCA9B0A7EBA1DA115, 0xA0761D6478BD642F)
"""Two rounds would do but for the topmost bit: flips of two of them cancelled each other too often."""

_PIECE: Final = 1 << 20  # words that are mixed at once, to bound the memory
_LOW: Final = 0xFFFFFFFF

_salts: dict[torch.dtype, int] = {}

Words = npt.NDArray[np.uint64]


def salt(dtype: torch.dtype) -> int:
    """The 64-bit constant that tells equal bytes of different dtypes, and of another scheme, apart."""
    number = _salts.get(dtype)
    if number is None:
        number = _salts[dtype] = int(xxhash.xxh3_64_intdigest(f"{SCHEME} {dtype}".encode()))
    return number


def value(tensor: torch.Tensor) -> int:
    """The fingerprint of a strided tensor, on whatever device it is. Waits for the device. Never 0."""
    return finish_one(int(raw(tensor).item()), tensor.nbytes, tensor.dtype)


def finish_one(total: int, nbytes: int, dtype: torch.dtype) -> int:
    """The value of one tensor from its raw sum."""
    return int(finish(*(np.array([number & (2**64 - 1)], np.uint64) for number in (total, nbytes, salt(dtype))))[0])


def finish(totals: Words, nbytes: Words, salts: Words) -> Words:
    """The values of many tensors from their raw sums, numbers of bytes and salts. None is 0."""
    with np.errstate(over="ignore"):
        words = (totals + nbytes * np.uint64(WEYL)) ^ salts
        for factor in FACTORS:
            words = (words ^ (words >> np.uint64(32))) * np.uint64(factor)
    words ^= words >> np.uint64(32)
    words[words == 0] = 1
    return words


def raw(tensor: torch.Tensor, start: int = 0) -> torch.Tensor:
    """The raw sum of a tensor whose first word is word number ``start``: an int64 of no dimension, on its device."""
    dense = tensor.detach().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # whatever the stride of a single element
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for piece in flat.split(_PIECE * WORD):
        words = _words(piece)
        places = torch.arange(start + 1, start + 1 + len(words), dtype=torch.int64, device=flat.device)
        total += mix(words ^ places * _signed(WEYL)).sum()
        start += len(words)
    return total


def constant(pattern: int, nbytes: int) -> int:
    """The raw sum of ``nbytes`` bytes in which every word is ``pattern``, the last one cut off."""
    words = torch.full((-(-nbytes // WORD),), _signed(pattern), dtype=torch.int64)
    return int(raw(words.view(torch.uint8)[:nbytes]).item())


def mix(words: Any) -> Any:
    """The bijection, over a tensor of int64."""
    for factor in FACTORS:
        words = (words ^ (words >> 32 & _LOW)) * _signed(factor)
    return words ^ (words >> 32 & _LOW)


def _words(piece: torch.Tensor) -> torch.Tensor:
    """The bytes as words, filled up with zeros; a copy, so that alignment does not matter."""
    words = torch.zeros(-(-len(piece) // WORD), dtype=torch.int64, device=piece.device)
    words.view(torch.uint8)[: len(piece)] = piece
    return words


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
