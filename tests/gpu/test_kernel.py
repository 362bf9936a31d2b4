"""The kernels against the plain implementation of the same scheme."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import pytest
import torch

from opguard_ci.capture import native
from opguard_ci.capture.fingerprint import mix64
from opguard_ci.capture.fingerprint.backends import TorchBackend, TritonBackend, pieces
from opguard_ci.capture.fingerprint.cuda import MANY, DeviceFingerprints
from opguard_ci.capture.fingerprint.quiet import Unhashable

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
CHUNK = 1 << 16


@pytest.fixture(params=["compiled", "python"])
def fingerprints(request):
    """With kernels started by the compiled launcher, and by Python."""
    compiled = native.load()[0] if request.param == "compiled" else None
    if request.param == "compiled" and compiled is None:
        pytest.skip(native.load()[1])
    return DeviceFingerprints(pytest.fail, compiled)


def noise(nbytes: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """A contiguous tensor of random bytes that begins ``offset`` elements into its memory."""
    count = nbytes // dtype.itemsize
    data = torch.randint(0, 256, ((count + offset) * dtype.itemsize,), dtype=torch.uint8, device="cuda")
    if dtype is torch.bool:
        data &= 1
    return data.view(dtype)[offset : offset + count]


def resolved(fingerprints: DeviceFingerprints, handles: list[int]) -> list[int]:
    fingerprints.end_step().wait()
    return fingerprints.values.of_all(handles)


def test_triton_is_used(fingerprints):
    """On a machine with Triton the kernels are used, not the fallback, and the launcher starts them if there is one."""
    assert isinstance(fingerprints._backend(torch.device("cuda", 0)), TritonBackend)
    data = torch.ones(8, device="cuda")
    fingerprints.queue(data)
    if fingerprints._compiled is not None:
        tensors = [data, torch.ones(64, 64, device="cuda").t(), data[:2], data[2:4]]
        assert all(fingerprints.launcher.queue(tensors))


class Idle:
    """A launcher that takes rows and starts nothing."""

    def open(self, *args):
        self.page = None

    learn_one = learn_many = end = open

    def begin(self, index, page):
        self.page = page

    def queue(self, tensors):
        return [self.page.handle(self.page.add([t.nbytes], [t.dtype], 0)) for t in tensors] if self.page else [0]


def test_a_launcher_that_adds_up_something_else_is_not_used():
    """What it does is held against Python before it is asked for anything."""
    fingerprints = DeviceFingerprints(pytest.fail, SimpleNamespace(Launcher=Idle))
    data = torch.arange(100, device="cuda")
    for _ in range(2):
        assert resolved(fingerprints, fingerprints.queue_all([data])) == [mix64.value(data)]
    assert isinstance(fingerprints.launcher, Idle)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 5, 8])
def test_sizes_and_alignments(fingerprints, dtype, offset):
    """Every size around word, block and chunk edges, wherever it begins, has the oracle's value."""
    edges = (0, 1, 7, 8, 9, 63, 64, 1023, 8192, 8200, CHUNK, 2 * CHUNK)
    sizes = sorted({max(0, edge + d) for edge in edges for d in (-8, -1, 0, 1, 8)})
    tensors = [noise(size, dtype, offset) for size in sizes]
    alone = resolved(fingerprints, [fingerprints.queue_all([tensor])[0] for tensor in tensors])
    together = resolved(fingerprints, fingerprints.queue_all(tensors))
    expected = [mix64.value(tensor) for tensor in tensors]
    assert alone == expected
    assert together == expected


def test_strides(fingerprints):
    """Transposed, sliced, expanded and flipped dimensions are read in logical order."""
    rng = random.Random(0)
    tensors = []
    for _ in range(60):
        dtype = rng.choice(DTYPES)
        shape = [rng.randint(1, 9) for _ in range(rng.randint(1, 4))]
        tensor = noise(2048 * dtype.itemsize * len(shape), dtype)[: 9 ** len(shape)]
        tensor = torch.as_strided(tensor, shape, [rng.randint(0, 200) for _ in shape])
        tensors.append(tensor.permute(*rng.sample(range(len(shape)), len(shape))))
    got = resolved(fingerprints, fingerprints.queue_all(tensors))
    assert got == [mix64.value(tensor.cpu()) for tensor in tensors]


def test_large_tensors_that_are_not_contiguous(fingerprints):
    """They are copied in pieces, whose sums add up to that of the whole."""
    data = torch.randn(3, 4097, 4099, device="cuda")
    for tensor in (data.transpose(1, 2), data.permute(2, 0, 1), data[:, :, 1:], data.bfloat16().transpose(0, 2)):
        assert sum(piece.numel() for piece, _ in pieces(tensor)) == tensor.numel()
        handle = fingerprints.queue(tensor)
        assert resolved(fingerprints, [handle]) == [mix64.value(tensor)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_few_rows_below_many_others(fingerprints, dtype):
    """Heads that go back behind time, and whatever else has rows too few for a tile of the kernel."""
    for shape in (
        (3, 12, 70, 64),
        (2, 16, 2048, 128),
        (2, 31, 5, 8),
        (1, 3, 4099, 40),
        (4, 1, 33, 16),
        (2, 2, 16, 7, 24),
    ):
        data = torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)
        tensors = [data.transpose(1, 2), data.transpose(1, 2)[1:, 3:], data.transpose(-3, -2)[..., 8:]]
        got = resolved(fingerprints, [fingerprints.queue(tensor) for tensor in tensors])
        assert got == [mix64.value(tensor.cpu()) for tensor in tensors]


def test_large_tensor(fingerprints):
    """Sizes beyond 2**31 elements and bytes are counted in 64 bits."""
    data = torch.randint(0, 256, ((1 << 32) + 12345,), dtype=torch.uint8, device="cuda")
    handle = fingerprints.queue(data)
    assert resolved(fingerprints, [handle]) == [mix64.value(data)]


@pytest.mark.parametrize("nbytes", [1, 7, 8, 12, 4096, CHUNK - 4, CHUNK, CHUNK + 4, MANY * 3 + 2])
@pytest.mark.parametrize("number", [0, 1])
def test_constants(fingerprints, nbytes, number):
    """The value of a constant tensor is known without making one."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64):
        tensor = torch.full((nbytes // dtype.itemsize,), number, dtype=dtype, device="cuda")
        if not len(tensor):
            continue
        pattern = bytes(tensor[:1].cpu().view(torch.uint8).tolist())
        assert resolved(fingerprints, [fingerprints.queue_constant(pattern, tensor)]) == [mix64.value(tensor)]


def test_fallback_agrees(fingerprints):
    """Without Triton the values are the same."""
    tensors = [noise(size, torch.float32) for size in (4, 400, 1 << 20)]
    slow = DeviceFingerprints(pytest.fail)
    slow._backend = lambda device: TorchBackend()
    assert resolved(slow, slow.queue_all(tensors)) == resolved(fingerprints, fingerprints.queue_all(tensors))


def test_many_more_than_a_page(fingerprints):
    """A step may have any number of tensors; slots are used again without a trace of what they held."""
    tensors = [noise(8 * (n % 50), torch.float32) for n in range(300)]
    expected = [mix64.value(tensor) for tensor in tensors]
    for _ in range(4):
        handles = [handle for _ in range(40) for handle in fingerprints.queue_all(tensors)]
        handles += [fingerprints.queue(tensor) for tensor in tensors]
        assert resolved(fingerprints, handles) == expected * 41


def test_nothing_is_kept(fingerprints):
    """Memory that is freed and reused right after the call was read before."""
    handles, expected = [], []
    for n in range(200):
        data = torch.full((1000,), float(n), device="cuda")
        handles.append(fingerprints.queue(data))
        expected.append(mix64.value(data.cpu()))
        pointer = data.data_ptr()
        del data
        again = torch.zeros(1000, device="cuda")
        assert again.data_ptr() == pointer
        del again
    assert resolved(fingerprints, handles) == expected


def test_streams_and_threads(fingerprints):
    """Tensors of several streams and threads of one step."""
    results = {}

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            data = torch.full((1 << 20,), float(number), device="cuda")
            for _ in range(20):
                data = data * 1.5 + 1
                results.setdefault(number, []).append((fingerprints.queue(data), data.clone()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pairs = [pair for entries in results.values() for pair in entries]
    got = resolved(fingerprints, [handle for handle, _ in pairs])
    torch.cuda.synchronize()
    assert got == [mix64.value(data) for _, data in pairs]


def test_no_sync_before_the_end_of_the_step(fingerprints):
    """Queueing never waits for the device."""
    data = [torch.randn(100, 100, device="cuda") for _ in range(5)]
    resolved(fingerprints, fingerprints.queue_all(data))
    torch.cuda.set_sync_debug_mode("error")
    try:
        handles = fingerprints.queue_all(data)
        handles += [fingerprints.queue(tensor.t()) for tensor in data]
        step = fingerprints.end_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    step.wait()
    assert fingerprints.values.of_all(handles) == [mix64.value(d) for d in data] + [mix64.value(d.t()) for d in data]


def test_no_sync_that_torch_can_see(fingerprints):
    """A program may forbid all waiting before it has made its first tensor."""
    data = torch.randn(100, 100, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        handles = fingerprints.queue_all([data])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert resolved(fingerprints, handles) == [mix64.value(data)]


def test_graphs_are_left_alone(fingerprints):
    """A stream that is being captured into a CUDA graph gets no kernel of ours."""
    data = torch.randn(100, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(Unhashable):
        fingerprints.queue(data)


def test_extra_memory(fingerprints):
    """A large transposed tensor costs no copy of its own size."""
    data = torch.randn(1 << 14, 1 << 14, device="cuda")
    resolved(fingerprints, [fingerprints.queue(data)])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fingerprints.queue(data.t())
    assert torch.cuda.max_memory_allocated() - before < 256 << 20
    fingerprints.end_step().wait()


def test_large_tensors_share_a_launch(fingerprints):
    """Tensors of one call up to ``MANY`` bytes are read by one kernel, whatever their sizes."""
    tensors = [noise(size, torch.bfloat16) for size in (MANY, 2, MANY - 2, 5 << 20, 77_776, MANY + 2)]
    assert resolved(fingerprints, fingerprints.queue_all(tensors)) == [mix64.value(tensor) for tensor in tensors]
