"""How the elements of a strided tensor lie, and how they are read as words: as few dimensions as will do. Pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_WORD: Final = 8
_MAX_DIMENSIONS: Final = 5

ROWS, COLUMNS, NOTHING = range(3)


@dataclass(frozen=True, slots=True)
class Strides:
    """A tensor as (outer, middle, inner, row, column). Strides count items; a word is ``8 // item`` items of a row."""

    item: int  # bytes
    together: int  # what lies together in memory: ROWS, COLUMNS or NOTHING
    outer: int
    middle: int
    inner: int
    num_rows: int
    row_words: int
    strides: tuple[int, int, int, int, int]

    aligned: bool
    """Whether wide loads are possible along what lies together."""

    @property
    def arguments(self) -> tuple[int, ...]:
        """What a kernel is given."""
        return (self.middle, self.inner, self.num_rows, self.row_words, *self.strides)


@functools.lru_cache(maxsize=4096)
def strides_of(shape: Sequence[int], strides: Sequence[int], itemsize: int, in_words: bool) -> Strides | None:
    """How to read a tensor that is not contiguous; None where words would reach over the end of a row.

    ``in_words``: the tensor begins at an address divisible by 8.
    """
    dimensions = _joined([*zip(shape, strides, strict=True)])
    item = itemsize
    if item > _WORD:  # complex128
        dimensions = _joined([*((n, stride * 2) for n, stride in reversed(dimensions)), (2, 1)])
        item = _WORD
    if len(dimensions) > _MAX_DIMENSIONS or dimensions[0][0] * item % _WORD:
        return None
    per = _WORD // item
    (length, across), *others = dimensions
    if across == 1 and in_words and not any(stride % per for _, stride in others):
        item, length = _WORD, length // per
        others = [(n, stride // per) for n, stride in others]
        per = 1
    others += [(1, 0)] * (_MAX_DIMENSIONS - 1 - len(others))
    (num_rows, down), (inner, inner_stride), (middle, middle_stride), (outer, outer_stride) = others
    together = COLUMNS if across == 1 else ROWS if down == 1 else NOTHING
    found = (outer_stride, middle_stride, inner_stride, down, across)
    apart = [stride for axis, stride in enumerate(found) if axis != {ROWS: 3, COLUMNS: 4}.get(together)]
    aligned = together != NOTHING and all(stride % 16 == 0 for stride in apart)
    return Strides(item, together, outer, middle, inner, num_rows, length // per, found, aligned)


@functools.lru_cache(maxsize=4096)
def layout_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of the same elements in the same order, in as few dimensions as will do.

    Two views that begin at one place show the same bytes in the same order if these are equal.
    """
    dimensions = _joined([*zip(shape, strides, strict=True)])[::-1]
    return tuple(length for length, _ in dimensions), tuple(stride for _, stride in dimensions)


def _joined(dimensions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same memory in fewer dimensions, the innermost first."""
    joined: list[tuple[int, int]] = []
    for length, stride in reversed(dimensions):
        if length == 1:
            continue
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (length * joined[-1][0], joined[-1][1])
        else:
            joined.append((length, stride))
    return joined or [(1, 1)]
