"""Who adds up the raw sums of device tensors: Triton kernels, or torch's own operators where there is no Triton."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import torch

from . import mix64
from .pages import Page
from .quiet import quiet
from .strides import strides_of

_PIECE: Final = 1 << 25
"""So many bytes of a tensor are copied at a time if its elements cannot be read where they are."""

_address: Callable[[torch.Tensor], int] = getattr(torch._C, "_data_address")  # noqa: B009 - not in its stubs


class Backend(Protocol):
    """Adds raw sums to the slots of a page, in order of a stream."""

    def one(self, stream: int, data: torch.Tensor, page: Page, row: int) -> None:
        """Add the raw sum of a strided tensor."""

    def many(self, stream: int, tensors: Sequence[torch.Tensor], sizes: list[int], page: Page, row: int) -> None:
        """Add those of contiguous tensors of these sizes, at addresses divisible by 8, to consecutive slots."""

    def constant(self, stream: int, pattern: int, nbytes: int, page: Page, row: int) -> None:
        """Add the raw sum of a tensor with ``pattern`` in every word."""

    def num_kernels(self) -> int:
        """How many kernels ``teach`` would tell of."""

    def teach(self, launcher: Any, index: int) -> None:
        """Have the compiled launcher know the kernels of device ``index``."""


class TritonBackend:
    """The kernels of ``cuda_kernel``. Raises at once if Triton, or what it needs, is missing."""

    def __init__(self) -> None:
        from .cuda_kernel import CHUNK, Kernels

        self._kernels, self._chunk = Kernels(), CHUNK

    def one(self, stream: int, data: torch.Tensor, page: Page, row: int) -> None:
        """See ``Backend``."""
        slot = page.address + row * mix64.WORD
        if data.is_contiguous():
            self._kernels.one(stream, address_of(data), data.nbytes, 0, slot)
            return
        address = address_of(data)
        strides = strides_of(data.shape, data.stride(), data.itemsize, not address % mix64.WORD)
        if strides is not None:
            self._kernels.strided(stream, address, strides, slot)
            return
        with quiet():
            for piece, start in pieces(data):
                self._kernels.one(stream, address_of(piece), piece.nbytes, start, slot)

    def many(self, stream: int, tensors: Sequence[torch.Tensor], sizes: list[int], page: Page, row: int) -> None:
        """See ``Backend``."""
        entries = [number for data, size in zip(tensors, sizes, strict=True) for number in (address_of(data), size)]
        page.entries[2 * row : 2 * row + len(entries)] = memoryview(array("q", entries))
        table, slots = page.table_address + row * 2 * mix64.WORD, page.address + row * mix64.WORD
        self._kernels.many(stream, table, slots, len(tensors), max(sizes))

    def constant(self, stream: int, pattern: int, nbytes: int, page: Page, row: int) -> None:
        """See ``Backend``."""
        self._kernels.constant(stream, pattern, nbytes, page.address + row * mix64.WORD)

    def num_kernels(self) -> int:
        """See ``Backend``."""
        return self._kernels.num_compiled()

    def teach(self, launcher: Any, index: int) -> None:
        """See ``Backend``."""
        by_unit, many = self._kernels.contiguous()
        launcher.open(index, self._chunk, self._kernels.plan)
        for unit, kernel in by_unit.items():
            launcher.learn_one(index, unit, kernel)
        launcher.learn_many(index, many)


class TorchBackend:
    """The same by torch's own operators: many times slower, and everywhere."""

    def one(self, stream: int, data: torch.Tensor, page: Page, row: int) -> None:
        """See ``Backend``."""
        with quiet():
            for piece, start in pieces(data):
                page.slots[row] += mix64.raw(piece, start)

    def many(self, stream: int, tensors: Sequence[torch.Tensor], sizes: list[int], page: Page, row: int) -> None:
        """See ``Backend``."""
        for offset, data in enumerate(tensors):
            self.one(stream, data, page, row + offset)

    def constant(self, stream: int, pattern: int, nbytes: int, page: Page, row: int) -> None:
        """See ``Backend``."""
        with quiet():
            words = torch.full((-(-nbytes // mix64.WORD),), pattern - (pattern >> 63 << 64), device=page.slots.device)
            page.slots[row] += mix64.raw(words.view(torch.uint8)[:nbytes])

    def num_kernels(self) -> int:
        """See ``Backend``."""
        return 0

    def teach(self, launcher: Any, index: int) -> None:
        """See ``Backend``. There is none."""


def address_of(tensor: torch.Tensor) -> int:
    """Where a strided tensor begins. ``data_ptr()`` would copy the memory of a lazy clone."""
    return _address(tensor) + int(tensor.storage_offset()) * tensor.itemsize


def pieces(tensor: torch.Tensor, start: int = 0) -> Iterator[tuple[torch.Tensor, int]]:
    """A tensor as contiguous ones, copied if need be, in logical order, each with the number of its first word."""
    axis = next((n for n, length in enumerate(tensor.shape) if length > 1), None)
    if tensor.is_contiguous() or tensor.nbytes <= _PIECE or axis is None:
        yield tensor.contiguous(), start
        return
    row = tensor.nbytes // tensor.shape[axis]
    together = mix64.WORD // math.gcd(row, mix64.WORD)  # so many rows are whole words
    if row > _PIECE and together == 1:
        for number in range(tensor.shape[axis]):
            yield from pieces(tensor.select(axis, number), start + number * (row // mix64.WORD))
        return
    rows = max(1, _PIECE // (row * together)) * together
    for first in range(0, tensor.shape[axis], rows):
        length = min(rows, tensor.shape[axis] - first)
        yield tensor.narrow(axis, first, length).contiguous(), start + first * row // mix64.WORD
