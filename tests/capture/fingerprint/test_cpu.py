"""Fingerprints of host memory."""

from __future__ import annotations

import tracemalloc

import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.capture.fingerprint import cpu


@given(st.binary(max_size=300), st.sampled_from([torch.float32, torch.int64, torch.bool]))
def test_bytes_and_memory_agree(data: bytes, dtype: torch.dtype):
    """XXH3 of the bytes, told apart by dtype, never 0."""
    expected = xxhash.xxh3_64_intdigest(data) ^ cpu.salt(dtype)
    assert cpu.of_bytes(data, dtype) == (expected or 1)
    if data:
        held = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        assert cpu.of_memory(held.data_ptr(), len(data), dtype) == cpu.of_bytes(data, dtype)


@given(st.binary(min_size=1, max_size=16), st.integers(0, 300_000))
def test_a_repeated_pattern_is_hashed_without_being_held(pattern: bytes, times: int):
    """The value of a constant tensor of any size."""
    times %= 300_000 // len(pattern)
    assert cpu.of_constant(pattern, times * len(pattern), torch.uint8) == cpu.of_bytes(pattern * times, torch.uint8)


def test_constants_are_the_values_of_zeros_and_ones():
    """For each dtype that has a one."""
    for dtype in (*cpu.EXACT_INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        for length in (5, 70_000):
            zeros, ones = (torch.full((length,), n).to(dtype) for n in (0, 1))
            assert cpu.constants(dtype, zeros.nbytes) == {
                cpu.of_memory(held.data_ptr(), held.nbytes, dtype) for held in (zeros, ones)
            }


def test_texts_have_values_of_their_own():
    """Numbers and names; lone surrogates included."""
    assert len({cpu.of_text(text) for text in ("", "1", "1.0", "True", "\ud800")}) == 5


def test_constants_leave_nothing_in_the_heap():
    """No memory of a tensor's size is taken and let go for them: an empty tensor would get it, full of ones."""
    cpu.constants(torch.float32, 4096)
    tracemalloc.start()
    try:
        cpu.constants(torch.float32, 1 << 14)
        assert tracemalloc.get_traced_memory()[1] < 1 << 13
    finally:
        tracemalloc.stop()
