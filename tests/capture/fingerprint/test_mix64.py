"""The scheme of device tensors tells apart what other fingerprints confuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.capture.fingerprint import cpu, mix64

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
)
seeds = st.integers(0, 2**32 - 1)


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def distinct(tensors: list[torch.Tensor]) -> bool:
    """Whether all tensors have values of their own."""
    return len({mix64.value(tensor) for tensor in tensors}) == len(tensors)


@given(seeds, st.integers(2, 6), st.integers(2, 6), st.integers(1, 9))
def test_permutations(seed, heads, time, width):
    """Rows, heads and time steps in another order, reversed, rolled or transposed."""
    x = noise(seed, heads, time, width)
    order = torch.roll(torch.arange(time), 1)
    swapped = x.clone()
    swapped[0], swapped[1] = x[1], x[0]
    assert distinct([x, swapped, x[:, order]])
    assert distinct([x, x.flip(0), x.roll(1, -2), x.transpose(0, 1)])


@given(seeds, st.integers(2, 300), st.data())
def test_swapped_elements(seed, count, data):
    """Two elements that change places."""
    x = noise(seed, count)
    a, b = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    y = x.clone()
    y[a], y[b] = x[b], x[a]
    assert distinct([x, y])


@given(seeds, st.integers(3, 64))
def test_signs(seed, count):
    """x, -x and every pattern of two flipped signs, which XOR and L1 cannot see."""
    x = noise(seed, count)
    tensors = [x, -x, x.abs() * 2]
    for n in range(1, min(count, 8)):
        y = x.clone()
        y[0], y[n] = -y[0], -y[n]
        tensors.append(y)
    assert distinct(tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8], ids=str)
def test_constants_of_any_length(dtype):
    """Zeros and ones of 0 to 300 elements: all 600 values differ but for the two empty ones."""
    tensors = [torch.zeros(n, dtype=dtype) for n in range(300)] + [torch.ones(n, dtype=dtype) for n in range(1, 300)]
    assert distinct(tensors)


@given(seeds, st.integers(1, 40), st.integers(1, 20))
def test_appended_zeros(seed, count, more):
    """Zeros at the end or at the beginning are not lost."""
    x = noise(seed, count)
    zeros = torch.zeros(more)
    assert distinct([x, torch.cat([x, zeros]), torch.cat([zeros, x])])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_flipped_bit(dtype):
    """One bit, at every position of a tensor with words and a rest."""
    data = torch.randint(0, 256, (48 + dtype.itemsize,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    tensors = [data.view(dtype)]
    for position in range(8 * len(data)):
        flipped = data.clone()
        flipped[position // 8] ^= 1 << position % 8
        tensors.append(flipped.view(dtype))
    assert distinct(tensors)


@given(seeds, st.integers(0, 80))
def test_dtypes(seed, count):
    """Equal bytes of different dtypes."""
    data = torch.randint(0, 2, (16 * count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    assert distinct([data.view(dtype) for dtype in DTYPES])


@given(seeds, st.integers(0, 5), st.integers(1, 5), st.integers(1, 5))
def test_strides_do_not_matter(seed, offset, rows, columns):
    """The value is that of the logical content, whatever its strides and where it begins."""
    base = noise(seed, offset + rows * columns)[offset:].reshape(rows, columns)
    assert mix64.value(base.t()) == mix64.value(base.t().contiguous())
    assert mix64.value(base.reshape(-1)) == mix64.value(base)


@given(st.integers(1, 2000), st.sampled_from([b"\0", b"\x80\x3f", b"\0\0\x80\x3f", b"\1\0\0\0\0\0\0\0"]))
def test_pieces_add_up(count, pattern):
    """Sums of the parts, each with the number of its first word, add up to the sum of the whole."""
    data = torch.tensor([*(pattern * count)], dtype=torch.uint8)
    cut = len(data) // 2 // 8 * 8
    parts = mix64.raw(data[:cut]) + mix64.raw(data[cut:], cut // 8)
    assert mix64.raw(data).item() == parts.item()


def test_many_values_do_not_collide():
    """A million small tensors with little in them: nothing twice."""
    numbers = torch.arange(1_000_000)
    words = numbers * mix64._signed(mix64.WEYL) ^ mix64._signed(mix64.WEYL)
    assert len(mix64.mix(words).unique()) == len(numbers)


def test_finish_is_never_zero():
    """0 stands for "no value"."""
    x = torch.tensor([3], dtype=torch.int64)
    assert mix64.finish_one(0, 0, x.dtype) != 0
    assert mix64.value(x) not in (0, cpu.of_bytes(x.numpy().tobytes(), x.dtype))


def test_single_element_with_any_stride():
    """A tensor of one element counts as contiguous whatever its strides say."""
    x = torch.randn(3, 3, dtype=torch.float64)[1:2, 1:2]
    assert mix64.value(x) == mix64.value(x.clone().reshape(1))
