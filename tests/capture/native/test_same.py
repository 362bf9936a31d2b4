"""The compiled recorder makes the events of the Python one, whatever the program."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from opguard_ci.capture.hooks import listening
from opguard_ci.capture.session import Session
from opguard_ci.capture.steps import Steps
from opguard_ci.trace.model import Event
from tests.capture.running import Ran, Runner
from tests.compare.programs import random_program
from tests.compare.running import Fault, run

CASES = Path(__file__).parents[2] / "cases" / "data"
UNSTEADY = {"b_worker_arrival_order", "f_thread_pool", "f_uninit_padding"}
"""Cases whose events differ from run to run."""


def same(runners: tuple[Runner, Runner], target: str, folder: Path, **options: Any) -> Ran:
    """Run a target twice; both traces say the same."""
    compiled, python = (runner.run(target, folder, **options) for runner in runners)
    assert compiled.stdout == python.stdout
    assert compiled.ok == python.ok
    assert_same_events(
        *([event for table in ran.trace.steps() for event in table.events()] for ran in (compiled, python))
    )
    for key in ("coverage", "findings", "level", "scheme", "notes"):
        assert compiled.manifest[key] == python.manifest[key]
    return compiled


def assert_same_events(compiled: list[Event], python: list[Event]) -> None:
    """All events are the same but for memory that nobody wrote and generators that nobody seeded."""
    for one, other in zip(compiled, python, strict=True):
        assert one == other or _is_garbage(one)


def _is_garbage(event: Event) -> bool:
    places = ("masked_and_typed_storage", "foreign_memory_refilled", "_slices")
    return (event.op, event.step) == ("rng", -1) or any(f"\t{name}\t" in (event.stack or "") for name in places)


def test_strange_programs(runners: tuple[Runner, Runner], tmp_path: Path):
    """Every odd kind of tensor, transform, mode and operator, but for finalizers: when they run is up to Python."""
    root = str(Path(__file__).parents[3])
    assert same(runners, "tests.capture.strange:main", tmp_path, cwd=root, argv=["garbage_collection_in_between"]).ok


@pytest.mark.parametrize("name", ["conv_net", "encoder_bf16", "tiny_gpt"])
def test_recipes(strict_runners: tuple[Runner, Runner], tmp_path: Path, name: str):
    """The recipes that ship with the package."""
    assert same(strict_runners, f"opguard_ci.recipes.{name}:{name}", tmp_path).ok


@pytest.mark.parametrize("name", sorted({path.stem for path in CASES.glob("[abcdf]_*.py")} - UNSTEADY)[::2])
def test_cases(runners: tuple[Runner, Runner], tmp_path: Path, name: str):
    """Every second acceptance program, each at the level that its name happens to choose."""
    level = "op" if len(name) % 2 else "full"
    assert same(runners, f"{CASES / name}.py:bad", tmp_path, level=level).ok


@pytest.mark.parametrize("level", ["full", "op"])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(compiled: Any, seed: int, level: str):
    """Random programs, with values that change below the recorder."""
    program = random_program(random.Random(seed))
    clean = run(program, level=level)
    calls = [event for event in clean.events() if event.kind == "op" and event.writes]
    chosen = random.Random(seed).choice(calls)
    for fault in (None, Fault("negate", call=chosen.index, op=chosen.op)):
        both = [run(program, fault, level, module) for module in (compiled, None)]
        assert_same_events(both[0].events(), both[1].events())
        assert both[0].manifest["steps"] == both[1].manifest["steps"]


THREADS = """
import threading
import numpy as np
import torch

def main():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    held = np.zeros((3, 4), np.float32)
    for number in range(3):
        held[:] = number
        found = []
        threads = [threading.Thread(target=lambda: found.append(model(torch.from_numpy(held) + 1))) for _ in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
        backward = threading.Thread(target=sum(found).sum().backward)
        backward.start()
        backward.join()
        model[0].weight.data.numpy()[0, 0] += 1
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("level", ["full", "op"])
def test_threads_and_foreign_writes(runners: tuple[Runner, Runner], tmp_path: Path, level: str):
    """Operators of other threads, in turn, and memory that numpy writes."""
    (tmp_path / "program.py").write_text(THREADS)
    ran = same(runners, "program.py:main", tmp_path, level=level)
    assert {event.lane for event in ran.events()} > {0, 1, 2}


def test_errors_are_those_of_a_bare_run(runners: tuple[Runner, Runner], tmp_path: Path):
    """What an operator raises reaches the program unchanged, and the call is not recorded."""
    source = """
import torch

def main():
    torch.manual_seed(0)
    x = torch.ones(2, 3)
    for call in (lambda: x @ x, lambda: x.view(5), lambda: x[7], lambda: x.add_(torch.ones(2, 3, 4))):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error)
    print(x.mul_(2).sum().item())
"""
    (tmp_path / "program.py").write_text(source)
    ran = same(runners, "program.py:main", tmp_path)
    assert ran.stdout == runners[0].run("program.py:main", tmp_path, bare=True).stdout
    assert ran.stdout.count("\n") == 5


def test_no_tensor_is_kept_alive(compiled: Any):
    """The memory of a tensor is free as soon as the program lets go of it."""
    session = Session("/nowhere", lambda table: None, compiled=compiled)
    with listening(session, Steps(session, None), operators=True):
        x = torch.ones(1000)
        storage = x.untyped_storage()._weak_ref()
        y = x * 2
        del x
        assert torch.UntypedStorage._expired(storage)
        del y
    session.close()
    torch.UntypedStorage._free_weak_ref(storage)
