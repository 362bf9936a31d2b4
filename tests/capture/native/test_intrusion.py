"""The compiled recorder sits in torch's own table of methods: what might go wrong there does not."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from opguard_ci.capture.hooks import listening
from opguard_ci.capture.recorder import Recorder
from opguard_ci.capture.session import Session
from opguard_ci.capture.steps import Steps
from opguard_ci.trace.model import Event, StepTable
from tests.capture.running import Runner


class Watched:
    """A session whose events are kept."""

    def __init__(self, compiled: Any) -> None:
        self._tables: list[StepTable] = []
        self.session = Session("/nowhere", self._tables.append, compiled=compiled)

    @contextmanager
    def listening(self) -> Iterator[Session]:
        """Record operators, of new threads too."""
        with listening(self.session, Steps(self.session, None), operators=True):
            yield self.session

    def events(self, op: str = "aten.") -> list[Event]:
        """Ends the session; its events of the operators whose names begin so."""
        self.session.close()
        return [event for table in self._tables for event in table.events() if event.op.startswith(op)]


@contextmanager
def kernel(function: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """``aten::sqrt`` is made by a Python function."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("sqrt", function, "CPU")
    try:
        yield
    finally:
        library._destroy()


def test_a_session_that_ends_in_the_middle_of_a_call(compiled: Any):
    """The thread that made the call gets its result; the call is not recorded."""
    watched = Watched(compiled)
    running, go_on = threading.Event(), threading.Event()
    found: list[torch.Tensor] = []

    def slow(x: torch.Tensor) -> torch.Tensor:
        running.set()
        assert go_on.wait(20)
        return x.pow(0.5)

    with kernel(slow), watched.listening():
        thread = threading.Thread(target=lambda: found.append(torch.full((2,), 9.0).sqrt() + 1))
        thread.start()
        assert running.wait(20)
        events = watched.events()
        go_on.set()
        thread.join()
    assert found[0].tolist() == [4.0, 4.0]
    assert [event.op for event in events] == ["aten.full.default"]


def test_a_session_that_has_ended_is_let_go(compiled: Any):
    """Nothing that is compiled holds it."""
    watched = Watched(compiled)
    with Recorder(watched.session):
        torch.ones(2).neg()
    assert len(watched.events()) == 2
    gone = weakref.ref(watched.session)
    del watched
    gc.collect()
    assert gone() is None


class Odd(BaseException):
    """What no ``except Exception`` catches."""


@pytest.mark.parametrize("error", [ValueError("odd"), KeyboardInterrupt("odd"), Odd("odd")])
def test_what_a_kernel_raises_is_what_arrives(compiled: Any, error: BaseException):
    """The very object, in forward and through a backward; later calls are recorded."""
    watched = Watched(compiled)

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise error

    with kernel(fail), watched.listening():
        with pytest.raises(type(error)) as caught:
            torch.ones(2).sqrt()
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.register_hook(lambda grad: grad.sqrt())
        with pytest.raises(type(error)) as caught_behind:
            y.sum().backward()
        torch.ones(2).neg()
    assert caught.value is error
    assert caught_behind.value is error
    ops = [event.op for event in watched.events()]
    assert ops[-1] == "aten.neg.default"
    assert "aten.sqrt.default" not in ops
    assert watched.session.unseen == set()


def test_an_interrupt_while_the_recorder_works_is_no_defect_of_it(compiled: Any, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C ends the program; what an ordinary error of the recorder does is only to be told."""
    watched = Watched(compiled)

    def fail(frame: object) -> int:
        raise errors.pop()

    errors: list[BaseException] = [KeyError("defect"), KeyboardInterrupt()]
    with watched.listening() as session:
        x = torch.ones(2)
        monkeypatch.setattr(session.stacks, "current", fail)
        with pytest.raises(KeyboardInterrupt):
            x.neg()
        assert x.abs().tolist() == [1.0, 1.0]
        monkeypatch.undo()
        x.sign()
    assert [event.op for event in watched.events()] == ["aten.ones.default", "aten.sign.default"]
    (unseen,) = watched.session.unseen
    assert unseen.startswith("aten.abs.default, on which the recorder itself failed")
    assert "defect" in unseen


def test_sessions_beside_and_inside_of_each_other(compiled: Any):
    """Each sees what runs while it is entered, whoever is entered in between and in whatever order they end."""
    outer, inner, python, other = (Watched(module) for module in (compiled, compiled, None, compiled))
    with Recorder(outer.session):
        x = torch.ones(2)
        with Recorder(inner.session), Recorder(python.session):
            y = x * 2
        here, there = threading.Event(), threading.Event()

        def elsewhere() -> None:
            with Recorder(other.session):
                torch.ones(3)
                here.set()
                assert there.wait(20)
                torch.zeros(3)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        assert here.wait(20)
        y.neg()
    there.set()
    thread.join()
    y.abs()
    seen = {
        name: [event.op.split(".")[1] for event in watched.events()]
        for name, watched in (("outer", outer), ("inner", inner), ("python", python), ("other", other))
    }
    assert seen == {"outer": ["ones", "mul", "neg"], "inner": ["mul"], "python": ["mul"], "other": ["ones", "zeros"]}


def test_threads_that_run_at_the_same_time(compiled: Any):
    """All calls on shared and own tensors are recorded, large ones too, read without Python's lock."""
    watched = Watched(compiled)
    shared = torch.ones(300, 300)
    totals: list[float] = []

    def work(number: int) -> None:
        own = torch.full((300, 300), float(number))
        for _ in range(60):
            own = own * 0.5 + shared
            own.t().sum()
        totals.append(own.sum().item())

    with watched.listening():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    by_lane: dict[int, list[str]] = {}
    for event in watched.events():
        by_lane.setdefault(event.lane, []).append(event.op)
    one, *others = by_lane.values()
    assert len(one) == 1 + 60 * 4 + 2
    assert all(other == one for other in others)
    assert watched.session.unseen == set()
    assert len(totals) == 3


PROGRAM = """
import os, sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

def deeper(x):
    return deeper(x + 1)

def traced(found):
    code = work.__code__
    def trace(frame, event, argument):
        if frame.f_code is code:
            found.append((event, frame.f_lineno - code.co_firstlineno))
            return trace
    return trace

def work(x):
    y = x * 2
    return y.sum()

def main():
    x = torch.arange(6.0)
    print(make_fx(lambda x: (x.sin() * 2, torch.rand(3)))(x).code)
    with FakeTensorMode(allow_non_fake_inputs=True):
        print(torch.ones(3) + torch.ones(3), torch.add(x, 1).shape)
    found = []
    sys.settrace(traced(found))
    try:
        work(x)
    finally:
        sys.settrace(None)
    print(found)
    with torch.utils._python_dispatch._disable_current_modes():
        x.neg()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, repr(float((x * 3).sum())).encode())
        os._exit(0)
    os.wait()
    print(os.read(reader, 100), x.cos().sum().item())
    print(torch.vmap(lambda row: row.sin().sum())(x.view(2, 3)))
    print(torch.jit.trace(lambda x: x * 2 + 1, x)(x))
"""


def test_tracers_debuggers_and_forks(runner: Runner, compiled: Any, tmp_path: Path):
    """What looks at Python or traces torch sees what it would see; what is hidden from modes stays hidden."""
    (tmp_path / "program.py").write_text(PROGRAM)
    bare, ran = (runner.run("program.py:main", tmp_path, bare=bare) for bare in (True, False))
    assert ran.ok, ran.answer
    assert ran.stdout == bare.stdout
    assert ran.manifest["coverage"]["unseen"] == ["operators in processes that the target forked"]
    assert not ran.events("aten.neg")
    assert len(ran.events("aten.cos")) == 1


def test_recursion_to_the_limit(runner: Runner, compiled: Any, tmp_path: Path):
    """The program's own error arrives, and it goes on."""
    (tmp_path / "program.py").write_text(
        "import torch\n"
        "def deeper(x):\n"
        "    return deeper(x + 1)\n"
        "def main():\n"
        "    try:\n"
        "        deeper(torch.zeros(2))\n"
        "    except RecursionError:\n"
        "        print('too deep')\n"
        "    print(torch.ones(2) * 2)\n"
    )
    bare, ran = (runner.run("program.py:main", tmp_path, bare=bare) for bare in (True, False))
    assert ran.ok, ran.answer
    assert ran.stdout == bare.stdout
    assert len(ran.events("aten.mul")) == 1
