"""The value of a tensor: its content, all of it, and nothing else."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_ci.capture.fingerprint import cpu, tensors
from opguard_ci.capture.fingerprint.cuda import DeviceFingerprints
from opguard_ci.capture.fingerprint.quiet import Unhashable

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (
    *FLOATS,
    *cpu.EXACT_INTEGERS,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bits8,
    torch.bits16,
)

DEVICES = DeviceFingerprints(pytest.fail)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def value(tensor: torch.Tensor) -> int:
    """The value of a tensor on the host."""
    return tensors.value(tensor, DEVICES)


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Random bytes seen as a dtype."""
    if dtype is torch.bool:
        return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.5
    data = np.random.default_rng(seed).integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape)


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(shapes, st.sampled_from(DTYPES), st.integers(0, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_strides_offset_and_alignment_do_not_matter(shape: Any, dtype: torch.dtype, offset: int, data: Any):
    """However a tensor lies in memory, its value is that of its contiguous copy."""
    plain = sample(*shape, dtype=dtype)
    words = plain.view(WORDS[dtype.itemsize])  # copied as integers, which every dtype can be seen as
    order = data.draw(st.permutations(range(len(shape))))
    inverse = [order.index(axis) for axis in range(len(shape))]
    permuted = words.permute(order).contiguous().permute(inverse)
    spread = torch.zeros(words.numel() * 2 + offset, dtype=words.dtype)[offset : offset + 2 * words.numel() : 2]
    spread.copy_(words.reshape(-1))
    assert value(plain) == value(permuted.view(dtype)) == value(spread.view(dtype))


@given(st.sampled_from(DTYPES), st.integers(1, 40), st.data())
@settings(max_examples=200, deadline=None)
def test_one_flipped_bit_changes_the_value(dtype: torch.dtype, length: int, data: Any):
    """At any position, of any dtype."""
    plain = sample(length, dtype=dtype if dtype is not torch.bool else torch.uint8)
    flipped = plain.clone() if dtype.itemsize > 1 else plain.view(torch.uint8).clone().view(plain.dtype)
    bytes_ = flipped.view(torch.uint8)
    place = data.draw(st.integers(0, len(bytes_) - 1))
    bytes_[place] ^= 1 << data.draw(st.integers(0, 7))
    assert value(flipped) != value(plain)


@given(st.permutations(range(6)), st.sampled_from((0, 1, 2)))
@settings(max_examples=60, deadline=None)
def test_a_permutation_of_rows_heads_or_time_changes_the_value(order: list[int], axis: int):
    """Sums and XORs are blind to it."""
    plain = sample(6, 6, 6, dtype=torch.float32)
    permuted = plain.index_select(axis, torch.tensor(order))
    assert (value(permuted) == value(plain)) == (order == sorted(order))


@given(st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_swapped_elements_change_the_value(left: int, right: int):
    """Unless they are the same element."""
    plain = torch.arange(31.0)
    swapped = plain.clone()
    swapped[left], swapped[right] = plain[right], plain[left]
    assert (value(swapped) == value(plain)) == (left == right)


def test_constants_of_any_length_differ():
    """Zeros, ones and other constants of 1 to 300 elements, and their negatives."""
    values = [value(torch.full((n,), c)) for n in range(1, 301) for c in (0.0, -0.0, 1.0, -1.0, 0.5)]
    assert len(set(values)) == len(values)


def test_near_relatives_differ():
    """Negation, reversal, rolls, transposes, appended zeros, triangles, doubled rows."""
    x = sample(8, 8, dtype=torch.int32).float()
    family = [x, -x, x.flip(0), x.flip(1), x.T, x.abs(), x.tril(), x.triu(), torch.cat([x, torch.zeros(1, 8)]), x[:7]]
    family += [x.roll(n, axis) for n in range(1, 8) for axis in (0, 1)]
    family += [torch.cat([x, x]), torch.cat([x, -x]), torch.zeros_like(x), torch.ones_like(x)]
    values = [value(t) for t in family]
    assert len(set(values)) == len(values)


def test_dtype_counts_and_shape_does_not():
    """The same bytes as another dtype are another value; a reshape is not."""
    raw = sample(64, dtype=torch.uint8)
    values = [value(raw.view(dtype)) for dtype in DTYPES if dtype is not torch.bool]
    assert len(set(values)) == len(values)
    assert value(raw.view(8, 8)) == value(raw)
    assert value(torch.zeros(0, dtype=torch.float32)) != value(torch.zeros(0, dtype=torch.int64))


def test_nan_payloads_and_signed_zeros_count():
    """Bits, not numbers."""
    raw = torch.tensor([0x7FC00000, 0x7FC00001, 0xFFC00000 - (1 << 32), -(1 << 31), 0], dtype=torch.int32)
    values = [value(raw[n : n + 1].view(torch.float32)) for n in range(5)]
    assert len(set(values)) == 5


def test_lazy_bits_are_resolved():
    """Conjugate, negative and zero tensors have the values of their materialised selves."""
    for dtype in (torch.complex32, torch.complex64, torch.complex128):
        z = sample(5, 7, dtype=dtype)
        assert value(z.conj()) == value(z.conj().resolve_conj())
        assert value(z.mH) == value(z.mH.resolve_conj().contiguous())
        if dtype is not torch.complex32:
            assert value(z.conj().imag) == value(z.conj().imag.resolve_neg())
            assert value(z.conj().imag.T[1:]) == value(z.conj().imag.T[1:].resolve_neg().contiguous())
    assert value(torch._efficientzerotensor(3, 4)) == value(torch.zeros(3, 4))


@pytest.mark.parametrize("shape", [(1500, 1700), (3, 1200, 900), (2, 2, 2, 700, 400)])
def test_large_strided_tensors_are_read_in_pieces(shape: tuple[int, ...]):
    """The pieces add up to the whole."""
    x = torch.arange(float(np.prod(shape))).reshape(shape)
    for view in (x.transpose(0, -1), x.transpose(-1, -2), x[..., ::3], x.flip(0)):
        assert value(view) == value(view.contiguous())


def test_expanded_tensors():
    """An expanded tensor has the value of its copy; one that no memory could hold has one all the same."""
    assert value(torch.ones(1, 3).expand(2000, 3)) == value(torch.ones(2000, 3))
    huge = torch.ones(1, 1).expand(1 << 20, 1 << 20)
    assert value(huge) != value(torch.zeros(1, 1).expand(1 << 20, 1 << 20))
    assert value(huge) != value(torch.ones(1, 1).expand(1 << 20, 1 << 21))
    assert value(huge) == value(huge[None]) == value(huge.view(1 << 10, 1 << 10, -1))


def test_layouts():
    """Sparse, quantised, nested and mkldnn tensors: structure and content both count."""
    x = torch.tensor([[1.0, 0, 2], [0, 0, 3]])
    sparse = [x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc(), x.to_sparse_bsr((1, 3)), x.to_sparse_bsc((1, 3))]
    moved = x.roll(1, 1)
    for left, right in itertools.combinations([*sparse, moved.to_sparse(), (2 * x).to_sparse(), x], 2):
        assert value(left) != value(right)
    quantised = [torch.quantize_per_tensor(x, s, z, torch.quint8) for s, z in ((0.1, 0), (0.1, 1), (0.2, 0))]
    quantised.append(torch.quantize_per_channel(x, torch.ones(2), torch.zeros(2), 0, torch.quint8))
    assert len({value(q) for q in quantised}) == 4
    for layout in (torch.strided, torch.jagged):
        nested = [torch.nested.nested_tensor(parts, layout=layout) for parts in ([x[0], x[1]], [x[0], x[1, :2]])]
        assert value(nested[0]) != value(nested[1])
    assert value(x.to_mkldnn()) == value(x.clone().to_mkldnn())


def test_a_tensor_that_cannot_be_read_says_why():
    """A wrapper that does not tell what it holds, a tensor within a transform."""

    class Closed(torch.Tensor):
        @staticmethod
        def __new__(cls) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, (2,))

        @classmethod
        def __torch_dispatch__(cls, *args: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(Unhashable, match="Closed"):
        value(Closed())
    seen = []
    torch.func.vmap(lambda row: seen.append(_reason(row)) or row)(torch.zeros(2, 3))  # type: ignore[func-returns-value]
    assert "functorch" in seen[0]


def _reason(tensor: torch.Tensor) -> str:
    try:
        return str(value(tensor))
    except Unhashable as reason:
        return str(reason)


def test_out_of_memory_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    """A copy that does not fit leaves the tensor unhashed, and the run goes on."""

    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError("no memory")

    monkeypatch.setattr(np, "ndarray", full)
    with pytest.raises(Unhashable, match="no memory"):
        value(torch.zeros(4, 4).T[1:])


def test_the_thread_does_not_matter():
    """Eight threads that hash at once agree."""
    x = sample(300, 300).T
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(value(x))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {value(x.contiguous())}


def test_looking_leaves_no_trace():
    """No autograd node, no version, no random draw, no operator that a mode would see."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Nosy(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(func)

    held = [sample(3, 4).T, torch.zeros(3, 4).to_sparse(), torch.quantize_per_tensor(sample(3), 0.1, 0, torch.quint8)]
    held += [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), sample(3, 4).requires_grad_().T]
    held += [sample(4, dtype=torch.complex64).conj(), torch.ones(2).to_mkldnn()]
    state = torch.get_rng_state()
    before = [(t._version, torch._C._autograd._get_sequence_nr()) for t in held]
    with Nosy():
        for tensor in held:
            value(tensor)
    assert [(t._version, torch._C._autograd._get_sequence_nr()) for t in held] == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_lazy_clone_stays_lazy():
    """Reading does not make torch copy memory that two tensors share until one is written."""
    x = torch.ones(1000)
    clone = torch._lazy_clone(x)
    value(clone)
    value(x)
    assert torch._C._is_cow_tensor(clone)
