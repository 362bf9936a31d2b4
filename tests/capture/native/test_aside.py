"""What another thread hashes during a backward pass: the same values, of memory that nobody can write meanwhile."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from opguard_ci.capture.hooks import listening
from opguard_ci.capture.session import Session
from opguard_ci.capture.steps import Steps
from opguard_ci.trace.model import Event, StepTable
from tests.compare.programs import random_program
from tests.compare.running import run

from .test_same import assert_same_events

NEVER = 1 << 60
MANY = 1 << 20  # elements: what takes a while to read
Program = Callable[[Callable[[], None]], object]


class Aside:
    """Runs programs with every tensor read by the other thread that may be, and with none."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.num_read = 0

    def events(
        self, program: Callable[[Callable[[], None]], object], from_bytes: int, level: str = "op"
    ) -> list[Event]:
        """The events of a program, which is handed ``mark`` for the ends of its steps."""
        tables: list[StepTable] = []
        session = Session("/nowhere", tables.append, level=level, compiled=self.compiled)
        steps = Steps(session, None)
        steps.use_marks()
        before = self.compiled.num_read_aside()
        usual = self.compiled.read_aside_from(from_bytes)
        try:
            with listening(session, steps, operators=True):
                steps.mark(0)
                program(lambda: steps.mark(session.step + 1))
            session.close()
        finally:
            self.compiled.read_aside_from(usual)
        self.num_read = self.compiled.num_read_aside() - before
        return [event for table in tables for event in table.events()]

    def both(self, program: Program) -> list[Event]:
        """Its events with readings aside, which are those without."""
        found, numbers = [], []
        for from_bytes in (NEVER, 1):
            found.append(self.events(program, from_bytes))
            numbers.append(self.num_read)
        assert numbers[0] == 0
        assert_same_events(*found)
        return found[1]


@pytest.fixture
def aside(compiled: Any) -> Iterator[Aside]:
    """With two processors, without which there is nothing to try."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    if torch.cuda.is_available():
        pytest.skip("autograd's threads for devices are Python threads: nothing is read aside")
    if has_other_threads():
        pytest.skip("run by test_without_the_threads_of_a_test_runner")
    yield Aside(compiled)


def has_other_threads() -> bool:
    """Whether this process has more than one Python thread, as one of pytest-xdist has."""
    return len(sys._current_frames()) > 1


def test_without_the_threads_of_a_test_runner(compiled: Any):
    """All the others here, in a process of their own where they are skipped in this one."""
    if not has_other_threads():
        pytest.skip("they run in this process")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    folder = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))


def test_a_training_is_the_same(aside: Aside):
    """Layers, attention, products with transposed weights, gradients that add up, three optimizer steps."""

    def program(mark: Callable[[], None]) -> None:
        model = net()
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(3):
            x = torch.randn(4, 64, 256)
            y = model(x) + model(x.flip(1))
            q, k, v = (y.view(4, 64, 4, 64).transpose(1, 2) * n for n in (1, 2, 3))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 64, 256)
            (y.square().mean() + F.dropout(y[:, ::2], 0.5).abs().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            mark()

    assert len(aside.both(program)) > 200
    assert aside.num_read > 100


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(aside: Aside, seed: int):
    """Random programs with steps, state and optimizers."""
    program = random_program(random.Random(seed))
    events = []
    for from_bytes in (NEVER, 1):
        usual = aside.compiled.read_aside_from(from_bytes)
        events.append(run(program, level="op", compiled=aside.compiled).events())
        aside.compiled.read_aside_from(usual)
    assert_same_events(*events)


def test_memory_is_written_and_freed_at_once(aside: Aside):
    """Gradients that are added to in place, and large ones that are let go of where the next takes their memory."""

    def program(mark: Callable[[], None]) -> None:
        torch.manual_seed(0)
        x = torch.randn(MANY, requires_grad=True)
        for _ in range(3):
            total = sum((x * n).sin().cos().exp().sigmoid() for n in range(1, 6))
            torch.autograd.backward([total], [torch.ones(MANY)])
            mark()

    aside.both(program)
    assert aside.num_read > 30


def test_written_as_soon_as_it_is_over(aside: Aside):
    """What numpy writes behind our back after ``backward()`` comes after what was recorded."""

    def program(mark: Callable[[], None]) -> None:
        torch.manual_seed(0)
        x = torch.randn(4 * MANY, requires_grad=True)
        x.sin().backward(torch.ones(4 * MANY))
        assert x.grad is not None
        x.grad.numpy()[:] = 0
        mark()

    aside.both(program)
    assert aside.num_read


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        grad.numpy()[:] *= 2
        return grad


def with_function() -> None:
    x = torch.ones(MANY, requires_grad=True)
    Double.apply(x.sin()).exp().sum().backward()


def with_hook() -> None:
    x = torch.ones(MANY, requires_grad=True)
    y = x.sin()
    y.register_hook(lambda grad: grad.numpy().fill(3) and None)
    y.exp().sum().backward()


def with_hook_behind_a_leaf() -> None:
    x = torch.ones(MANY, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda leaf: leaf.grad.numpy().fill(3) and None)  # type: ignore[union-attr]
    x.sin().exp().sum().backward()


def with_saved_tensors() -> None:
    x = torch.ones(MANY, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda held: held, lambda held: held):
        y = x.sin().exp().sum()
    y.backward()


def with_hooks_of_a_node() -> None:
    x = torch.ones(MANY, requires_grad=True)
    y = x.sin()
    y.grad_fn._raw_saved_self.register_hooks(lambda held: held, lambda held: held)  # type: ignore[union-attr]
    y.exp().sum().backward()


class Zeros(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and not made.requires_grad:
            made.numpy().fill(0)
        return made


def with_a_mode() -> None:
    x = torch.ones(MANY, requires_grad=True)
    y = x.sin().exp()
    with Zeros():
        y.backward(torch.ones(MANY))


def with_another_thread() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    x = torch.ones(MANY, requires_grad=True)
    x.sin().exp().sum().backward()
    done.set()
    thread.join()


def with_graph_of_gradients() -> None:
    x = torch.ones(MANY, requires_grad=True)
    torch.autograd.grad(x.sin().exp().sum(), x, create_graph=True)


def without_a_backward_pass() -> None:
    x = torch.ones(MANY, requires_grad=True)
    y = x.sin().exp()
    with torch.no_grad():
        y.mul_(2)


@pytest.mark.parametrize(
    "program",
    [
        with_function,
        with_hook,
        with_hook_behind_a_leaf,
        with_saved_tensors,
        with_hooks_of_a_node,
        with_a_mode,
        with_another_thread,
        with_graph_of_gradients,
        without_a_backward_pass,
    ],
    ids=lambda program: program.__name__,
)
def test_not_where_python_may_run(aside: Aside, program: Callable[[], None]):
    """Whoever may run between operators may write unseen."""
    aside.events(lambda mark: program(), 1)
    assert aside.num_read == 0


def test_not_in_graphs_from_before(aside: Aside):
    """Hooks may unpack what those saved."""
    x = torch.ones(MANY, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda held: held, lambda held: held):
        y = x.sin()
    aside.events(lambda mark: y.exp().sum().backward(), 1)
    assert aside.num_read == 0


@pytest.mark.parametrize("level", ["full", "contract"])
def test_not_at_other_levels(aside: Aside, level: str):
    """At level ``full`` the next reader wants the value."""
    aside.events(lambda mark: net()(torch.ones(8, 256)).sum().backward(), 1, level)
    assert aside.num_read == 0


def test_a_failing_backward_pass(aside: Aside):
    """What it had begun to read is read, and the error is the program's."""

    def program(mark: Callable[[], None]) -> None:
        x = torch.ones(MANY, requires_grad=True)
        y = x.sin()
        z = y.exp()
        with torch.no_grad():
            z.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (z.cos() * y.cos()).sum().backward()
        mark()

    aside.both(program)


def test_failing_gradients(aside: Aside):
    """No reading outlives ``torch.autograd.grad`` either: of weights, here, which are transposed for the product."""

    def program(mark: Callable[[], None]) -> None:
        weight, x = torch.ones(6000, 6000), torch.ones(1, 6000, requires_grad=True)
        y = x.exp()
        z = y @ weight
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(z, x, torch.ones_like(z))
        weight.numpy().fill(0)
        mark()

    aside.both(program)
    assert aside.num_read


def test_a_fork_finds_no_thread(aside: Aside):
    """Python warns of forks of processes with threads."""

    def is_there() -> bool:
        return any(name.read_text() == "opguard-aside\n" for name in Path("/proc/self/task").glob("*/comm"))

    aside.events(lambda mark: net()(torch.ones(8, 256)).sum().backward(), 1)
    assert aside.num_read
    assert is_there()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(1000):  # it may still be on its way out
        if not is_there():
            break
        time.sleep(0.001)
    assert not is_there()


def test_a_fork(aside: Aside):
    """A child has what was read, and no thread to wait for."""

    def program(mark: Callable[[], None]) -> None:
        x = torch.ones(MANY, requires_grad=True)
        for _ in range(2):
            x.sin().exp().sum().backward()
            child = os.fork()
            if child == 0:
                y = torch.ones(10, requires_grad=True)
                y.sin().sum().backward()
                del x
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            mark()

    aside.both(program)
    assert aside.num_read


def test_memory_is_torch_s_own_again(aside: Aside):
    """What torch asks of the allocator's memory, it still gets; and so it is freed."""

    def program(mark: Callable[[], None]) -> None:
        x = torch.ones(MANY, requires_grad=True)
        x.sin().backward(torch.ones(MANY))
        assert x.grad is not None
        copy = torch._lazy_clone(x.grad)  # type: ignore[attr-defined]
        storage = x.grad.untyped_storage()._weak_ref()
        copy += 1
        x.grad = None
        assert torch.UntypedStorage._expired(storage)
        torch.UntypedStorage._free_weak_ref(storage)
        mark()

    aside.events(program, 1)
    assert aside.num_read
