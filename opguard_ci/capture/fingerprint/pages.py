"""Slots on a device where raw sums are added up, and the values that come of them.

A *handle* is a negative number that stands for a value until the device has computed it and the host has a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

import numpy as np
import torch

from . import cpu, mix64

PAGE: Final = 8192
"""Slots of a page."""


class Page:
    """Slots for the tensors of one device and one step. Reused when the host has read them."""

    capacity: Final = PAGE

    def __init__(self, device: torch.device) -> None:
        on_device = device.type == "cuda"
        self.slots = torch.zeros(PAGE, dtype=torch.int64, device=device)
        self.host = torch.empty(PAGE, dtype=torch.int64, pin_memory=on_device)
        self.table = torch.empty(PAGE * 2, dtype=torch.int64, pin_memory=on_device)
        """Address and number of bytes of the tensors that share a launch; the device reads it where it is."""
        self._totals = self.host.numpy().view(np.uint64)
        self.entries = self.table.numpy().data.cast("B").cast("q")
        self.address = self.slots.data_ptr()
        self.table_address = self.table.data_ptr()
        # The compiled launcher takes rows too: number of rows taken, and bytes and salts of their tensors.
        self.taken = np.zeros(1, np.int64)
        self.sizes, self.salts = np.zeros(PAGE, np.uint64), np.zeros(PAGE, np.uint64)
        self._taken, self._sizes, self._salts = self.taken.data, self.sizes.data, self.salts.data
        self.begin(0)

    def begin(self, number: int) -> None:
        """Take the page into use, under a number that no other one ever had."""
        self.number = number
        self.first = number * PAGE
        self._taken[0] = 0
        self.streams: set[int] = set()

    def __len__(self) -> int:
        """How many rows are taken."""
        return int(self._taken[0])

    def add(self, sizes: list[int], dtypes: list[torch.dtype], stream: int) -> int:
        """Take the next rows, for tensors that are read on this stream; the first of them."""
        row = self._taken[0]
        self._taken[0] = row + len(sizes)
        for offset, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True), row):
            self._sizes[offset], self._salts[offset] = size, mix64.salt(dtype)
        self.streams.add(stream)
        return row

    def handle(self, row: int) -> int:
        """The handle of the value that row ``row`` will have."""
        return ~(self.first + row)

    def values(self) -> mix64.Words:
        """The values, from the sums that were copied to the host."""
        count = len(self)
        return mix64.finish(self._totals[:count], self.sizes[:count], self.salts[:count])


class Values:
    """What handles stand for, as far as it is known."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._pages: dict[int, mix64.Words] = {}

    def next_number(self) -> int:
        """A number for a page that is taken into use."""
        return next(self._numbers)

    def learn(self, number: int, values: mix64.Words) -> None:
        """The values of page ``number`` are known."""
        self._pages[number] = values

    def forget(self, number: int) -> None:
        """Nobody will ask for handles of page ``number`` again."""
        self._pages.pop(number, None)

    def of(self, value: int) -> int:
        """The value that a handle stands for; a value stands for itself."""
        if value >= 0:
            return value
        number, row = divmod(~value, PAGE)
        return int(self._pages[number][row])

    def of_text(self, pieces: Iterable[str | int]) -> int:
        """The value of a text made of these pieces and, as hexadecimal digits, values."""
        return cpu.of_text("".join(piece if isinstance(piece, str) else f"{self.of(piece):x}" for piece in pieces))

    def of_all(self, values: Iterable[int]) -> list[int]:
        """The same for a whole column."""
        pages = self._pages
        return [value if value >= 0 else int(pages[~value // PAGE][~value % PAGE]) for value in values]
