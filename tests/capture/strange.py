"""A target that runs one snippet per step: every odd kind of tensor, transform, mode and operator that torch knows."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import itertools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
SNIPPETS: dict[str, Callable[[], Any]] = {}


def snippet(function: Callable[[], Any]) -> Callable[[], Any]:
    SNIPPETS[function.__name__] = function
    return function


def main(mark: Callable[[int], None] = lambda number: None) -> None:
    """Run all but those whose names are given as arguments, print for each a digest of what it returned."""
    warnings.simplefilter("ignore")
    for number, (name, function) in enumerate(SNIPPETS.items()):
        if name in sys.argv[1:]:
            continue
        mark(number)
        torch.manual_seed(number)
        try:
            held = function()
        except Exception as error:
            print(name, "raised", type(error).__name__, str(error).splitlines()[0])
        else:
            print(name, digest(held))


def digest(held: Any) -> str:
    if isinstance(held, torch.Tensor):
        plain = held.detach()
        if plain.is_sparse or plain.layout is not torch.strided:
            plain = plain.to_dense() if not plain.is_nested else plain.values()
        if plain.is_nested:
            plain = torch.cat([part.reshape(-1) for part in plain.unbind()])
        if plain.is_quantized:
            plain = plain.int_repr()
        if plain.is_meta:
            return f"meta{tuple(plain.shape)}"
        data = plain.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return hashlib.sha256(data).hexdigest()[:16]
    if isinstance(held, (list, tuple)):
        return "/".join(map(digest, held))
    return repr(held)


# Kinds of tensors


@snippet
def nested_strided() -> Any:
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    return nn.functional.relu(nested) * 2, torch.nested.to_padded_tensor(nested, 0.0)


@snippet
def nested_jagged() -> Any:
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged, requires_grad=True)
    (nested.sin() * 2).values().sum().backward()
    return nested.grad.values()


@snippet
def sparse_layouts() -> Any:
    dense = torch.randn(4, 6).relu()
    made = [dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()]
    made += [dense.to_sparse_bsr((2, 3)), dense.to_sparse_bsc((2, 3))]
    uncoalesced = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]]), torch.randn(3), (2,))
    return [m.to_dense() for m in made], uncoalesced + uncoalesced, uncoalesced.coalesce(), made[1] @ torch.ones(6, 1)


@snippet
def sparse_gradient() -> Any:
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    return table.weight


@snippet
def mkldnn_layout() -> Any:
    return torch.randn(3, 4).to_mkldnn().relu().to_dense()


@snippet
def quantised() -> Any:
    x = torch.randn(3, 4)
    per_tensor = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
    per_channel = torch.quantize_per_channel(x, torch.rand(3) + 0.1, torch.zeros(3), 0, torch.qint8)
    return (
        per_tensor.dequantize(),
        per_channel.dequantize(),
        per_channel.int_repr(),
        torch.cat([per_tensor, per_tensor]),
    )


@snippet
def complex_views() -> Any:
    z = torch.view_as_complex(torch.randn(4, 3, 2))
    half = z.to(torch.complex32)
    double = z.to(torch.complex128)
    return z.conj() * 2, z.conj().imag + 1, z.mH @ z, half.conj().resolve_conj(), double.conj().imag.neg(), z.conj().T


@snippet
def zero_tensors() -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.randn(3), torch.randn(3))
        out = dual * torch.ones(3) + torch.zeros(3)
        return torch.autograd.forward_ad.unpack_dual(out).tangent, torch._efficientzerotensor(3) + torch.randn(3)


@snippet
def small_floats() -> Any:
    x = torch.randn(4, 4)
    kinds = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.bfloat16)
    return [x.to(kind).t().float() for kind in kinds], x.half().t() * 2


@snippet
def unsigned_and_bits() -> Any:
    raw = torch.arange(16, dtype=torch.uint8)
    kinds = (torch.uint16, torch.uint32, torch.uint64, torch.bits8, torch.bits16)
    return [raw.view(kind).view(torch.uint8) for kind in kinds], raw.to(torch.uint16) + raw.to(torch.uint16)


@snippet
def shapes() -> Any:
    x = torch.randn(6)
    wide = torch.ones(1, 1).expand(1 << 16, 1 << 16)
    windows = x.as_strided((4, 3), (1, 1))
    return torch.tensor(2.5) * 3, x[:0].sum(), torch.zeros(0, 3) * 2, wide[:2, :2] * 2, windows * 2, x[::2], x.flip(0)


@snippet
def meta_and_fake() -> Any:
    big = torch.empty(1 << 20, 1 << 20, device="meta") * 2
    with torch._subclasses.FakeTensorMode():
        fake = torch.randn(3, 4) @ torch.randn(4, 2)
    return big.sum(), tuple(fake.shape)


class Logged(torch.Tensor):
    """Says which functions it was part of."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@snippet
def function_subclass() -> Any:
    Logged.calls.clear()
    x = torch.randn(3, 4).as_subclass(Logged)
    y = (x.t() * 2).sum()
    weight = nn.Parameter(torch.randn(2).as_subclass(Logged))
    (weight * 2).sum().backward()
    return y.as_subclass(torch.Tensor), weight.grad.as_subclass(torch.Tensor), list(Logged.calls)


class Wrapper(torch.Tensor):
    """Holds a tensor and handles its operators itself."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrap = lambda x: x.inner if isinstance(x, Wrapper) else x  # noqa: E731
        out = func(*torch.utils._pytree.tree_map(unwrap, args), **(kwargs or {}))
        return Wrapper(out) if isinstance(out, torch.Tensor) else out


@snippet
def dispatch_subclass() -> Any:
    x = Wrapper(torch.randn(3, 4))
    return (x * 2 + x).inner, x.sum().inner


@snippet
def masked_and_typed_storage() -> Any:
    x = torch.randn(4)
    view = torch.tensor([]).set_(x.untyped_storage(), 1, (2,), (1,))
    x.resize_(6)[4:] = 0
    y = torch.randn(3)
    y.resize_(2)
    z = torch.empty(0)
    torch.add(y, y, out=z)
    return view * 2, x, y * 2, z


# Transforms


@snippet
def functorch() -> Any:
    weight, x = torch.randn(3), torch.randn(5, 3)
    loss = lambda w, row: (w * row).sum().square()  # noqa: E731
    per_row = torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x)
    hessian = torch.func.hessian(lambda w: loss(w, x[0]))(weight)
    out, tangent = torch.func.jvp(lambda w: w.sin(), (weight,), (torch.ones(3),))
    return per_row, hessian, out, tangent, torch.func.vmap(torch.mm)(torch.randn(2, 3, 4), torch.randn(2, 4, 3))


@snippet
def random_in_vmap() -> Any:
    return torch.func.vmap(lambda x: x + torch.rand_like(x), randomness="different")(torch.zeros(4, 2))


@snippet
def functional_call_with_large_transposes() -> Any:
    model = nn.Linear(300, 300)
    grads = torch.func.grad(lambda p: torch.func.functional_call(model, p, torch.ones(300, 300)).sum())
    return grads(dict(model.named_parameters()))["weight"]


@snippet
def double_backward() -> Any:
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    g.square().sum().backward()
    return g, x.grad


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


@snippet
def custom_function() -> Any:
    x = torch.randn(3, requires_grad=True)
    Cube.apply(x).sum().backward()
    return x.grad


@snippet
def checkpointing() -> Any:
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3))
    x = torch.randn(2, 3, requires_grad=True)
    for reentrant in (True, False):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    return x.grad, model[0].weight.grad


@snippet
def saved_tensor_hooks() -> Any:
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), lambda a: torch.from_numpy(a)):
        y = x.sin()
    y.sum().backward()
    return x.grad


# Higher-order and compiled


@snippet
def cond_and_while() -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    x = torch.randn(3)
    made = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
    return made, while_loop(lambda n, t: n < 3, lambda n, t: (n + 1, t * 2), (torch.tensor(0), x))


@snippet
def flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention as attend

    q = torch.randn(1, 2, 16, 8)
    return attend(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j))


@snippet
def scripted() -> Any:
    function = torch.jit.script(_scripted)
    return function(torch.randn(3), 2.0)


def _scripted(x: torch.Tensor, k: float) -> torch.Tensor:
    for _ in range(2):
        x = x * k + 1
    return x


@snippet
def compiled_inductor() -> Any:
    torch._dynamo.reset()
    before = dict(torch._dynamo.utils.counters["stats"])
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.BatchNorm1d(8))
    compiled = torch.compile(model)
    for size in (5, 6):
        compiled(torch.randn(size, 4)).square().sum().backward()
    after = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before.get("unique_graphs", 0)
    return model[0].weight.grad, model[2].running_mean, after


@snippet
def compiled_aot_eager_with_breaks() -> Any:
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y * 2 + x

    x = torch.randn(3, requires_grad=True)
    f(x).sum().backward()
    return x.grad, torch._dynamo.utils.counters["frames"]["ok"] > 0


@snippet
def compiled_eager_backend() -> Any:
    torch._dynamo.reset()
    return torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.randn(3))


# Custom operators

_LIBRARY = torch.library.Library("strange", "DEF")
_LIBRARY.define("scale(Tensor x, float k) -> Tensor")
_LIBRARY.impl("scale", lambda x, k: x * k, "CompositeExplicitAutograd")


@torch.library.custom_op("strange::fill", mutates_args={"x"})
def fill(x: torch.Tensor, value: float) -> None:
    x.fill_(value)


@torch.library.custom_op("strange::silent", mutates_args=())
def silent(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.sum()


@torch.library.custom_op("strange::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@snippet
def custom_operators() -> Any:
    x = torch.randn(3)
    fill(x[:1], 2.0)
    return x, noisy(x), torch.ops.strange.scale(x, 1e-30)


@snippet
def custom_operator_that_writes_silently() -> Any:
    x = torch.zeros(3)
    return silent(x), x * 2


# In place, aliases, memory of others


@snippet
def in_place_and_aliases() -> Any:
    x = torch.randn(4, 4)
    x[1] = 0
    x.t_()
    x.data = torch.randn(3, 3)
    x[0].add_(x[1])
    x[:, 1].copy_(x[:, 2])
    y = torch.add(x, x, out=x)
    x.mul_(x)
    return x, y, x.diagonal().zero_(), x.squeeze_(), torch.addmm(x, x, x, out=torch.empty(3, 3))


@snippet
def foreign_memory_refilled_for_backward() -> Any:
    """A loader's buffer whose graph is used up, a gradient that is handed in, a custom function's scratch."""
    array = np.zeros(4, np.float32)
    given = torch.from_numpy(array)

    class Solver(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            array[:] = x.detach().numpy() ** 2
            return given.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            array[:] = grad.numpy() * 3
            return given

    weight = torch.ones(4, requires_grad=True)
    for part in range(2):
        array[:] = 1 + part
        (weight * given).sum().backward()
    made = weight * 2
    norm = given.norm()
    array[:] = 7
    made.backward(given)
    Solver.apply(weight * 1.5).sum().backward()
    return weight.grad, norm


@snippet
def foreign_memory_refilled() -> Any:
    buffer, out = np.zeros(4, np.float32), []
    shared = torch.from_numpy(buffer)
    staging = torch.empty(4)
    for n in range(3):
        buffer[:] = n
        staging.numpy()[:] = n
        shared.mul_(0.5)
        out.append(shared * 2 + staging)
    return out


@snippet
def loading_states() -> Any:
    import io

    model, other = nn.Linear(3, 3), nn.Linear(3, 3)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    optimizer = torch.optim.Adam(other.parameters())
    other(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(optimizer.state_dict())
    again.step()
    other.load_state_dict(model.state_dict(), assign=True)
    return other(torch.ones(1, 3)), again.state[again.param_groups[0]["params"][0]]["exp_avg"]


@snippet
def dlpack_and_offsets() -> Any:
    x = torch.zeros(8)
    part = torch.from_dlpack(x[2:6].numpy())
    part.add_(3)
    return x * 2, part


@snippet
def storage_moves() -> Any:
    x = torch.arange(4.0)
    x.untyped_storage().resize_(64)
    y = torch.randn(3)
    y.set_(torch.randn(5))
    return x * 2, y * 2


# Modes and settings around


class Counting(TorchDispatchMode):
    """Counts the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@snippet
def own_dispatch_mode() -> Any:
    with Counting() as mode:
        x = torch.randn(3, 4, dtype=torch.complex64)
        out = (x.t() @ x).conj().imag.relu(), torch.randn(3, 3).to_sparse().to_dense()
    return out, mode.seen


class Overriding(torch.overrides.TorchFunctionMode):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@snippet
def own_function_mode() -> Any:
    with Overriding() as mode:
        out = (torch.randn(3, 4).t() * 2).sum()
    return out, mode.seen


@snippet
def settings() -> Any:
    out = []
    weight = torch.randn(3, 3, requires_grad=True)
    for around in (
        torch.inference_mode(),
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.set_detect_anomaly(True),
        torch.profiler.profile(),
        torch.device("cpu"),
    ):
        with around:
            out.append((weight.t() @ weight).float() * 2)
    (weight.t() @ weight).sum().backward()
    return out, weight.grad


@snippet
def deterministic_algorithms() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.zeros(4).index_put_((torch.tensor([1, 1]),), torch.ones(2), accumulate=True)
        return x, torch.randn(3).cumsum(0)
    finally:
        torch.use_deterministic_algorithms(False)


@snippet
def default_device() -> Any:
    torch.set_default_device("meta")
    try:
        held = torch.ones(3) * 2
    finally:
        torch.set_default_device(None)
    return held


@snippet
def hooks_of_all_kinds() -> Any:
    model = nn.Linear(3, 3)
    seen = []
    model.register_forward_hook(lambda m, i, o: seen.append(o.sum()))
    model.register_full_backward_hook(lambda m, i, o: seen.append(o[0].sum()))
    model.weight.register_hook(lambda g: g * 2)
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    model(torch.randn(2, 3, requires_grad=True)).sum().backward()
    return seen, model.weight.grad


@snippet
def errors_pass_through() -> Any:
    out = []
    for wrong in (
        lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: torch.ones(2).view(3),
        lambda: torch.ones(3)[5],
        lambda: torch.empty(2).uniform_(1, 0),
    ):
        try:
            wrong()
        except Exception as error:
            out.append(f"{type(error).__name__} {error}")
    return out


@snippet
def same_text_for_different_arguments() -> Any:
    x = torch.ones(2)
    return x * 1, x * 1.0, x * True, x * -0.0, x * 0.0, x + float("nan"), x.sum([0]), x.sum(0)


@snippet
def memory_reused_within_a_step() -> Any:
    total = torch.zeros(())
    for n in range(50):
        total += torch.full((1000,), float(n)).sum()
    return total


@snippet
def generators() -> Any:
    own = torch.Generator().manual_seed(3)
    x = torch.rand(3, generator=own), torch.randn(3), torch.randperm(4, generator=own), torch.empty(3).normal_()
    state = torch.get_rng_state()
    a = torch.rand(2)
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        b = torch.rand(2)
    return x, a, b, torch.rand(2), nn.functional.dropout(torch.ones(4)), torch.multinomial(torch.ones(4), 2)


@snippet
def garbage_collection_in_between() -> Any:
    class Cycle:
        def __init__(self) -> None:
            self.me = self
            self.tensor = torch.ones(100)

        def __del__(self) -> None:
            self.tensor.mul_(2)

    gc.collect()  # from here on Python collects after as many objects in every run
    for _ in range(200):
        Cycle()
    made = torch.ones(3) * 2
    gc.collect()  # else the rest goes in the middle of another snippet
    return made


@snippet
def contexts_nested_deeply() -> Any:
    with contextlib.ExitStack() as stack:
        for _, _ in itertools.product(range(3), range(3)):
            stack.enter_context(torch.no_grad())
        return torch.ones(3) + 1
