"""The bookkeeping of device fingerprints, here with tensors of the CPU in place of a device's."""

from __future__ import annotations

import threading

import pytest
import torch

from opguard_ci.capture.fingerprint import mix64
from opguard_ci.capture.fingerprint.cuda import MANY, DeviceFingerprints
from opguard_ci.capture.fingerprint.pages import PAGE


@pytest.fixture
def fingerprints():
    return DeviceFingerprints(pytest.fail)


def test_handles_become_values(fingerprints):
    """A handle is negative until the step's end and then stands for the value; values stand for themselves."""
    tensors = [torch.randn(3, 5), torch.randn(8, 6).t(), torch.arange(9)[1:], torch.zeros(0), torch.ones(MANY // 2)]
    handles = [*(fingerprints.queue(tensor) for tensor in tensors), *fingerprints.queue_all(tensors)]
    assert [handle < 0 for handle in handles] == [bool(tensor.numel()) for tensor in tensors] * 2
    fingerprints.end_step().wait()
    assert fingerprints.values.of_all(handles) == [mix64.value(tensor) for tensor in tensors] * 2
    assert fingerprints.values.of(7) == 7


def test_steps_do_not_touch_each_other(fingerprints):
    """Two steps may be on their way at a time; slots come back empty."""
    batches, expected, handles = [], [], []
    for step in range(6):
        tensors = [torch.full((n + 1,), float(step)) for n in range(30)]
        handles.append(fingerprints.queue_all(tensors))
        expected.append([mix64.value(tensor) for tensor in tensors])
        batches.append(fingerprints.end_step())
        if step:
            batches[step - 1].wait()
            assert fingerprints.values.of_all(handles[step - 1]) == expected[step - 1]
    assert len(fingerprints._devices[-1].free) == 1


def test_more_than_a_page(fingerprints):
    """A step may have more tensors than a page has slots."""
    x = torch.randn(2)
    handles = [fingerprints.queue(x) for _ in range(3)] + fingerprints.queue_all([x] * (PAGE + 5))
    numbers = fingerprints.end_step().wait()
    assert len(numbers) == 3
    assert set(fingerprints.values.of_all(handles)) == {mix64.value(x)}


def test_forgotten_pages(fingerprints):
    """Values that nobody will ask for again take no memory."""
    handle = fingerprints.queue(torch.ones(2))
    (number,) = fingerprints.end_step().wait()
    fingerprints.values.forget(number)
    with pytest.raises(KeyError):
        fingerprints.values.of(handle)


def test_threads(fingerprints):
    """Several threads queue at once."""
    results = {}

    def work(number):
        results[number] = [fingerprints.queue(torch.full((n + 1,), float(number))) for n in range(200)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fingerprints.end_step().wait()
    for number, handles in results.items():
        expected = [mix64.value(torch.full((n + 1,), float(number))) for n in range(200)]
        assert fingerprints.values.of_all(handles) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 8, 1000])
def test_constants(fingerprints, count):
    """The value of a constant tensor, without the tensor."""
    for dtype, pattern in ((torch.float32, b"\0\0\x80\x3f"), (torch.bfloat16, b"\x80\x3f"), (torch.bool, b"\1")):
        handle = fingerprints.queue_constant(pattern, torch.empty(count, dtype=dtype))
        fingerprints.end_step().wait()
        assert fingerprints.values.of(handle) == mix64.value(torch.ones(count, dtype=dtype))
