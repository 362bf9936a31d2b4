"""The scheme of ``mix64`` as Triton kernels: one pass over the bytes, added up with atomics. Needs Triton."""
# mypy: ignore-errors
# Kernels are another language in Python's syntax: what has types there has none here.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import mix64
from .strides import COLUMNS, Strides, strides_of

_WEYL = tl.constexpr(mix64.WEYL)
_FACTOR_0, _FACTOR_1, _FACTOR_2 = (tl.constexpr(factor) for factor in mix64.FACTORS)
_BLOCK = 1024  # words that a program reads at once
_ROUNDS = 8  # how often it does
CHUNK = _BLOCK * _ROUNDS * mix64.WORD
"""Bytes that one program reads."""
_WARPS = 4


@triton.jit
def _mix(words):
    words = (words ^ (words >> 32)) * _FACTOR_0
    words = (words ^ (words >> 32)) * _FACTOR_1
    words = (words ^ (words >> 32)) * _FACTOR_2
    return words ^ (words >> 32)


@triton.jit
def _load(data, places, mask, UNIT: tl.constexpr):
    """Words by their places, read in units of as many bytes as the address is aligned to."""
    if UNIT == 8:
        return tl.load(data + places, mask=mask)
    if UNIT == 4:
        pieces = data.to(tl.pointer_type(tl.uint32))
    elif UNIT == 2:
        pieces = data.to(tl.pointer_type(tl.uint16))
    else:
        pieces = data.to(tl.pointer_type(tl.uint8))
    words = tl.zeros_like(places).to(tl.uint64)
    for number in tl.static_range(8 // UNIT):
        piece = tl.load(pieces + places * (8 // UNIT) + number, mask=mask)
        words |= piece.to(tl.uint64) << (8 * UNIT * number)
    return words


@triton.jit
def _sum(data, num_bytes, start, chunk, UNIT: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """The raw sum of one chunk of a tensor whose first word is word number ``start``."""
    num_words = num_bytes // 8
    places = chunk * (BLOCK * ROUNDS) + tl.arange(0, BLOCK).to(tl.int64)
    keys = (start + places + 1).to(tl.uint64) * _WEYL
    total = tl.zeros([BLOCK], tl.uint64)
    if (chunk + 1) * (BLOCK * ROUNDS) <= num_words:
        for number in tl.static_range(ROUNDS):
            words = _load(data, places + number * BLOCK, None, UNIT)
            total += _mix(words ^ (keys + (number * BLOCK * _WEYL & 0xFFFFFFFFFFFFFFFF)))
    else:
        for number in tl.static_range(ROUNDS):
            mask = places + number * BLOCK < num_words
            words = _load(data, places + number * BLOCK, mask, UNIT)
            total += tl.where(mask, _mix(words ^ (keys + (number * BLOCK * _WEYL & 0xFFFFFFFFFFFFFFFF))), 0)
    result = tl.sum(total, axis=0)
    rest = num_bytes % 8
    if (chunk == num_words // (BLOCK * ROUNDS)) & (rest > 0):
        lane = tl.arange(0, 8)
        end = data.to(tl.pointer_type(tl.uint8)) + num_words * 8
        last = tl.load(end + lane, mask=lane < rest, other=0).to(tl.uint64)
        word = tl.sum(last << (lane * 8).to(tl.uint64), axis=0)
        result += _mix(word ^ ((start + num_words + 1).to(tl.uint64) * _WEYL))
    return result


def _one(
    data,
    slot,
    num_bytes: tl.int64,
    start: tl.int64,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    """Add the raw sum of one tensor to the slot.

    Its end comes first: that was written last, and what is left of it in the cache need not be read from memory.
    """
    chunk = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    tl.atomic_add(slot, _sum(data, num_bytes, start, chunk, UNIT, BLOCK, ROUNDS))


_one_aligned = triton.jit(_one, do_not_specialize=["slot", "num_bytes", "start"])  # to 16 bytes: wide loads
_one_anywhere = triton.jit(_one, do_not_specialize=["data", "slot", "num_bytes", "start"])


@triton.jit(do_not_specialize=["table", "slots"])
def _many(table, slots, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Add the raw sums of many tensors to a row of slots; ``table`` holds the address and number of bytes of each."""
    row = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    chunk = (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    num_bytes = tl.load(table + row * 2 + 1)
    if chunk * (BLOCK * ROUNDS * 8) < num_bytes:
        data = tl.load(table + row * 2).to(tl.pointer_type(tl.uint64))
        tl.atomic_add(slots + row, _sum(data, num_bytes, 0, chunk, 8, BLOCK, ROUNDS))


@triton.jit(do_not_specialize=["slot", "pattern", "num_bytes"])
def _constant(slot, pattern: tl.int64, num_bytes: tl.int64, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Add the raw sum of a tensor that has ``pattern`` in every word."""
    chunk = tl.program_id(0).to(tl.int64)
    word = pattern.to(tl.uint64, bitcast=True)
    places = chunk * (BLOCK * ROUNDS) + tl.arange(0, BLOCK).to(tl.int64)
    total = tl.zeros([BLOCK], tl.uint64)
    for number in tl.static_range(ROUNDS):
        at = places + number * BLOCK
        left = tl.minimum(tl.maximum(num_bytes - at * 8, 0), 8)
        cut = (tl.full([BLOCK], 1, tl.uint64) << (left * 8).to(tl.uint64)) - 1
        words = tl.where(left == 8, word, word & cut)
        total += tl.where(left > 0, _mix(words ^ ((at + 1).to(tl.uint64) * _WEYL)), 0)
    tl.atomic_add(slot, tl.sum(total, axis=0))


@triton.jit
def _gather(data, down, columns, mask, column_stride, ITEM: tl.constexpr, TOGETHER: tl.constexpr):
    """The words of one tile, each put together from ``8 // ITEM`` items along its row, in halves of 32 bits."""
    if ITEM == 8:
        across = columns if TOGETHER == 1 else columns * column_stride
        words = tl.load(data + (down[:, None] + across[None, :]), mask=mask)
    else:
        low = tl.zeros([down.shape[0], columns.shape[0]], tl.uint32)
        high = tl.zeros([down.shape[0], columns.shape[0]], tl.uint32)
        for number in tl.static_range(8 // ITEM):
            across = columns * (8 // ITEM) + number
            if TOGETHER != 1:
                across *= column_stride
            item = tl.load(data + (down[:, None] + across[None, :]), mask=mask).to(tl.uint32)
            if number < 4 // ITEM:
                low |= item << (8 * ITEM * number)
            else:
                high |= item << (8 * ITEM * number - 32)
        words = low.to(tl.uint64) | (high.to(tl.uint64) << 32)
    return words


@triton.jit
def _down(rows, num_rows, inner_stride, row_stride):
    """Where rows of the dimension that inner and row make begin. There are fewer than 2^31."""
    rows = rows.to(tl.int32)
    num_rows = num_rows.to(tl.int32)
    return (rows // num_rows).to(tl.int64) * inner_stride + (rows % num_rows).to(tl.int64) * row_stride


def _strided(
    data,
    slot,
    middle: tl.int64,
    inner: tl.int64,
    num_rows: tl.int64,
    row_words: tl.int64,
    outer_stride: tl.int64,
    middle_stride: tl.int64,
    inner_stride: tl.int64,
    row_stride: tl.int64,
    column_stride: tl.int64,
    ITEM: tl.constexpr,
    TOGETHER: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    ROUNDS: tl.constexpr,
    FLAT: tl.constexpr,
):
    """Add the raw sum of a tensor of the dimensions (outer, middle, inner, row, column) to the slot (see ``strides``).

    ``TOGETHER`` says along which dimension items are neighbours in memory (0: rows, 1: columns, 2: neither), so that
    threads next to each other read such. ``FLAT``: inner and row make one dimension of rows that do not lie evenly,
    where there are too few rows for a tile. Programs go down the rows first, from the beginning: that is what is in the
    cache where the tensor that is shown has just been read, from its end.
    """
    num_inner = inner
    all_rows = num_rows
    if FLAT:
        num_inner = tl.full([], 1, tl.int64)
        all_rows = inner * num_rows
    place = tl.program_id(0).to(tl.int64)
    down_tiles = tl.cdiv(all_rows, ROWS * ROUNDS)
    tiles = tl.cdiv(row_words, WORDS)
    matrix = place // down_tiles // tiles
    first_column = (place // down_tiles % tiles) * WORDS
    first_row = place % down_tiles * (ROWS * ROUNDS)
    columns = first_column + tl.arange(0, WORDS).to(tl.int64)
    rows = first_row + tl.arange(0, ROWS).to(tl.int64)
    data += matrix // (middle * num_inner) * outer_stride + matrix // num_inner % middle * middle_stride
    data += matrix % num_inner * inner_stride
    first_of_rows = ((matrix * all_rows + rows) * row_words + 1).to(tl.uint64) * _WEYL
    keys = first_of_rows[:, None] + (columns.to(tl.uint64) * _WEYL)[None, :]
    step = (row_words * ROWS).to(tl.uint64) * _WEYL
    down = rows
    row_step = tl.full([], ROWS, tl.int64)
    if TOGETHER != 0:
        down *= row_stride
        row_step *= row_stride
    total = tl.zeros([ROWS, WORDS], tl.uint64)
    # A mask would keep loads narrow: only at the edges.
    if (first_column + WORDS <= row_words) & (first_row + ROWS * ROUNDS <= all_rows):
        for number in tl.static_range(ROUNDS):
            if FLAT:
                down = _down(rows + number * ROWS, num_rows, inner_stride, row_stride)
            total += _mix(_gather(data, down, columns, None, column_stride, ITEM, TOGETHER) ^ keys)
            if not FLAT:
                data += row_step
            keys += step
    else:
        for number in tl.static_range(ROUNDS):
            mask = (rows + number * ROWS < all_rows)[:, None] & (columns < row_words)[None, :]
            if FLAT:
                down = _down(rows + number * ROWS, num_rows, inner_stride, row_stride)
            words = _gather(data, down, columns, mask, column_stride, ITEM, TOGETHER)
            total += tl.where(mask, _mix(words ^ keys), 0)
            if not FLAT:
                data += row_step
            keys += step
    tl.atomic_add(slot, tl.sum(tl.sum(total, axis=1), axis=0))


_STRIDED_NUMBERS = ["slot", "middle", "inner", "num_rows", "row_words"]
_STRIDES = ["data", "outer_stride", "middle_stride", "inner_stride", "row_stride", "column_stride"]
_strided_aligned = triton.jit(_strided, do_not_specialize=_STRIDED_NUMBERS)  # strides are multiples of 16 items
_strided_anywhere = triton.jit(_strided, do_not_specialize=_STRIDED_NUMBERS + _STRIDES)
_ITEMS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_TILE = 1024  # words
_BUSY = 256  # so many programs keep a device busy; every one more adds to the same slot


_FEW = 32  # rows


def _tile(strides: Strides) -> tuple[int, int, int, bool]:
    """Rows and words of a tile, how many tiles a program reads, and whether inner and row make one dimension.

    There are few kinds, for each is compiled.
    """
    flat = strides.together == COLUMNS and strides.num_rows < _FEW < strides.inner * strides.num_rows < 1 << 31
    num_rows = strides.inner * strides.num_rows if flat else strides.num_rows
    widths = (8, 32, 128) if strides.together else (8, 16 if strides.item < 4 else 32)
    words = max((width for width in widths if width <= strides.row_words), default=widths[0])
    rows = max(rows for rows in (1, 8, 32, 64) if rows <= num_rows and rows * words <= _TILE)
    tiles = strides.outer * strides.middle * strides.inner * -(-strides.row_words // words) * strides.num_rows // rows
    rounds = next((n for n in (8, 2) if num_rows >= rows * n and tiles >= _BUSY * n), 1)
    return rows, words, rounds, flat


Entry = tuple[int, int, int]
"""A compiled kernel: handle of its function, threads of a program, bytes of shared memory."""
Plan = tuple[Entry, int, tuple[int, ...]]
"""A kernel, how many programs it takes, and its arguments behind address and slot."""


class Kernels:
    """The kernels of the current device, each compiled when it is first needed.

    Launching a compiled kernel by its own ``run`` leaves out Triton's look at every argument, which costs more than
    the launch. Addresses are those of memory on the device or pinned on the host, ``stream`` is a raw handle.
    """

    def __init__(self) -> None:
        self._by_unit = {16: self._compile_one(16)}
        self._many = _Launch(_many, (torch.int64, torch.uint64), (_BLOCK, _ROUNDS))
        self._strided: dict[tuple[int, int, bool, int, int, int, bool], _Launch] = {}
        self._constant: _Launch | None = None

    @staticmethod
    def _compile_one(unit: int) -> _Launch:
        kernel = _one_aligned if unit == 16 else _one_anywhere
        return _Launch(kernel, (torch.uint64, torch.uint64, 1 << 40, 1 << 40), (min(unit, 8), _BLOCK, _ROUNDS))

    def one(self, stream: int, address: int, nbytes: int, start: int, slot: int) -> None:
        """Add the raw sum of one tensor to a slot."""
        unit = 16 if address & 15 == 0 else address & -address
        launch = self._by_unit.get(unit)
        if launch is None:
            launch = self._by_unit[unit] = self._compile_one(unit)
        launch(-(-nbytes // CHUNK), 1, stream, address, slot, nbytes, start)

    def many(self, stream: int, table: int, slots: int, count: int, largest: int) -> None:
        """Add the raw sums of ``count`` tensors of at most ``largest`` bytes, at addresses divisible by 8."""
        self._many(count, -(-largest // CHUNK), stream, table, slots)

    def strided(self, stream: int, address: int, strides: Strides, slot: int) -> None:
        """Add the raw sum of a tensor that is not contiguous."""
        launch, programs = self._plan(address, strides)
        launch(programs, 1, stream, address, slot, *strides.arguments)

    def plan(self, shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int, address: int) -> Plan | None:
        """How to start the kernel of a tensor that is not contiguous, at any address that is aligned like this one.

        None if its elements have to be copied.
        """
        strides = strides_of(shape, stride, itemsize, not address % mix64.WORD)
        if strides is None:
            return None
        launch, programs = self._plan(address, strides)
        return launch.entry, programs, strides.arguments

    def contiguous(self) -> tuple[dict[int, Entry], Entry]:
        """What was compiled of ``one``, by how many bytes addresses are aligned to, and of ``many``."""
        return {unit: launch.entry for unit, launch in self._by_unit.items()}, self._many.entry

    def num_compiled(self) -> int:
        """How many kernels ``contiguous`` would tell of."""
        return len(self._by_unit) + 1

    def _plan(self, address: int, strides: Strides) -> tuple[_Launch, int]:
        aligned = strides.aligned and address & 15 == 0
        rows, words, rounds, flat = _tile(strides)
        key = (strides.item, strides.together, aligned, rows, words, rounds, flat)
        launch = self._strided.get(key)
        if launch is None:
            kernel = _strided_aligned if aligned else _strided_anywhere
            kinds = (_ITEMS[strides.item], torch.uint64, *(1 << 40 for _ in range(9)))
            constants = (strides.item, strides.together, rows, words, rounds, flat)
            launch = self._strided[key] = _Launch(kernel, kinds, constants)
        across = strides.outer * strides.middle * -(-strides.row_words // words)
        if flat:
            return launch, across * -(-strides.inner * strides.num_rows // (rows * rounds))
        return launch, across * strides.inner * -(-strides.num_rows // (rows * rounds))

    def constant(self, stream: int, pattern: int, nbytes: int, slot: int) -> None:
        """Add the raw sum of a tensor with ``pattern`` in every word."""
        if self._constant is None:
            self._constant = _Launch(_constant, (torch.uint64, 1 << 40, 1 << 40), (_BLOCK, _ROUNDS))
        self._constant(-(-nbytes // CHUNK), 1, stream, slot, pattern - (pattern >> 63 << 64), nbytes)


class _Launch:
    """A compiled kernel, and the shortest way to start it."""

    __slots__ = ("_constants", "_function", "_metadata", "_run", "entry")

    def __init__(self, kernel: Any, kinds: tuple[Any, ...], constants: tuple[int, ...]) -> None:
        compiled = kernel.warmup(*kinds, *constants, grid=(1,), num_warps=_WARPS)
        self._run = compiled.run
        self._function, self._metadata = compiled.function, compiled.packed_metadata
        self.entry: Entry = (compiled.function, compiled.metadata.num_warps * 32, compiled.metadata.shared)
        self._constants = constants

    def __call__(self, x: int, y: int, stream: int, *arguments: int) -> None:
        self._run(x, y, 1, stream, self._function, self._metadata, None, None, None, *arguments, *self._constants)
