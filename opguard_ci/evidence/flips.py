"""Which flipped bits turn the right tensor into the one that a fingerprint was taken of. Pure, no torch.

Of a run that nobody can repeat only fingerprints are left. Those of all tensors that lie a few bits away from the right
one can be tried: with 64 bits, one that fits is the one that was there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Final

import xxhash

MAX_BITS: Final = 3
"""So many flipped bits of one element are looked for; or two of any two elements of a small tensor."""
_MAX_TRIED: Final = 4_000_000
_MAX_HASHED: Final = 32 << 30
"""Bytes that are hashed at most: 64 KiB can be searched for a single bit."""


def find_flips(data: bytes, dtype: str, seen: int, element_bytes: int) -> list[int] | None:
    """The bits, counted over the whole tensor, whose flipping gives the fingerprint ``seen``; None if not found.

    ``data``: the right tensor's bytes in logical order. ``seen``: a fingerprint of the scheme ``xxh3-64/1``.
    """
    wanted = seen ^ int(xxhash.xxh3_64_intdigest(f"torch.{dtype}".encode()))
    tried = bytearray(data)
    left = min(_MAX_TRIED, _MAX_HASHED // max(len(data), 1))
    for size, bits in _candidates(len(data), element_bytes):
        left -= size
        if left < 0:
            return None
        for flipped in bits:
            _flip(tried, flipped)
            if xxhash.xxh3_64_intdigest(tried) == wanted:
                return list(flipped)
            _flip(tried, flipped)
    return None


def _candidates(nbytes: int, element_bytes: int) -> Iterator[tuple[int, Iterable[tuple[int, ...]]]]:
    """What to try, the likeliest first: how many, and which bits."""
    bits, width = 8 * nbytes, 8 * element_bytes
    yield bits, ((bit,) for bit in range(bits))
    for number in range(2, MAX_BITS + 1):
        flips = list(combinations(range(width), number))
        yield (
            len(flips) * (bits // width),
            (tuple(start + bit for bit in each) for start in range(0, bits, width) for each in flips),
        )
    yield bits * (bits - 1) // 2, combinations(range(bits), 2)


def _flip(data: bytearray, bits: tuple[int, ...]) -> None:
    for bit in bits:
        data[bit >> 3] ^= 1 << (bit & 7)
