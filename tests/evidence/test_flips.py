"""Flipped bits are found again from a fingerprint alone."""

from __future__ import annotations

import time

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_ci.capture.fingerprint import cpu
from opguard_ci.evidence.flips import find_flips

TENSOR = st.binary(min_size=4, max_size=64).map(lambda data: data[: len(data) // 4 * 4])


def flipped(data: bytes, bits: list[int]) -> bytes:
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(TENSOR, st.data())
@settings(max_examples=50, deadline=None)
def test_up_to_three_bits_of_an_element_are_found(data: bytes, choice: st.DataObject):
    """By the recorder's own fingerprint of the tensor that was there."""
    element = choice.draw(st.integers(0, len(data) // 4 - 1))
    bits = sorted(choice.draw(st.sets(st.integers(32 * element, 32 * element + 31), min_size=1, max_size=3)))
    seen = cpu.of_bytes(flipped(data, bits), torch.float32)
    assert sorted(find_flips(data, "float32", seen, 4) or []) == bits


@given(st.sets(st.integers(0, 511), min_size=2, max_size=2))
@settings(max_examples=10, deadline=None)
def test_two_bits_of_two_elements_of_a_small_tensor_are_found(bits: set[int]):
    """Wherever they lie."""
    data = bytes(range(64))
    seen = cpu.of_bytes(flipped(data, [*bits]), torch.bfloat16)
    assert set(find_flips(data, "bfloat16", seen, 2) or []) == bits


def test_another_tensor_is_no_flip():
    """Nor is the same one of another dtype."""
    data = bytes(range(32))
    assert find_flips(data, "float32", cpu.of_bytes(data[::-1], torch.float32), 4) is None
    assert find_flips(data, "float32", cpu.of_bytes(flipped(data, [5]), torch.int32), 4) is None


def test_the_largest_tensor_that_is_searched():
    """Has 64 KiB, as the documentation says."""
    for size, bits in ((1 << 16, [3]), ((1 << 16) + 4, None)):
        seen = cpu.of_bytes(flipped(bytes(size), [3]), torch.float32)
        assert find_flips(bytes(size), "float32", seen, 4) == bits


def test_a_large_tensor_is_given_up():
    """What would take minutes is not tried."""
    begin = time.process_time()
    assert find_flips(bytes(1 << 26), "float32", 1, 4) is None
    assert time.process_time() - begin < 2
