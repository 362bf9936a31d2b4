"""Of a long run, operators are recorded in a window of steps only, and the contract everywhere."""

from __future__ import annotations

import pytest

from opguard_ci.capture.window import Window, require_window
from opguard_ci.errors import UsageError
from opguard_ci.trace.model import OUTSIDE, OVER, STATE
from tests.capture.running import Programs

TRAIN = """
import resource
import torch
from torch import nn

def main(steps=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        if step in (100, 399):
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        model(torch.randn(6, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def long():
    main(400)
"""


@pytest.mark.parametrize("level", ["full", "op"])
def test_a_window_shows_what_a_whole_recording_shows(programs: Programs, level: str):
    """Step by step the same digests: of the contract everywhere, of operators and data inside."""
    whole = programs.run(TRAIN, level=level)
    part = programs.again("program.py:main", level=level, from_step=3, to_step=5)
    assert whole.ok and part.ok
    assert part.steps == whole.steps
    for step, (mine, other) in enumerate(zip(part.digests, whole.digests, strict=True)):
        if 3 <= step <= 5:
            assert mine == other
        else:
            assert mine["operators"] == {} and "data" not in mine
            left_out = ("operators", "data")
            assert {k: v for k, v in other.items() if k not in left_out} == {
                k: v for k, v in mine.items() if k not in left_out
            }
    assert part.manifest["window"] == {"from": 3, "to": 5}
    assert (
        "Operators were recorded from step 3 to step 5 only; of the other steps, the contract."
        in (part.manifest["notes"])
    )


def test_what_ran_unseen_is_no_foreign_write(programs: Programs):
    """Parameters are state from the first step on, and nothing of them counts as overwritten, then or later."""
    ran = programs.run(TRAIN, from_step=2, to_step=3)
    reads = [read for event in ran.events(kinds=("op", "contract", "view", "copy")) for read in event.reads]
    assert not [read for read in reads if read.flags & OVER]
    weights = [event.reads[1] for event in ran.events("aten.addmm", step=2)]
    assert weights
    inputs = [read for event in ran.events("aten.addmm", step=2) for read in event.reads]
    assert any(read.flags & STATE and read.flags & OUTSIDE for read in inputs)


def test_an_open_window(programs: Programs):
    """To the end, or from the beginning with the setup."""
    late = programs.run(TRAIN, from_step=6)
    assert {event.step for event in late.events()} == {6, 7}  # what follows is the contract of the end
    early = programs.again("program.py:main", to_step=1)
    assert {event.step for event in early.events()} == {0, 1}


def test_marked_steps(programs: Programs):
    """What runs before mark_step(0) is setup, and lies before a window that begins with step 0."""
    ran = programs.run(
        "import torch\n"
        "def main(mark):\n"
        "    torch.ones(3) + 1\n"
        "    for step in range(4):\n"
        "        mark(step)\n"
        "        torch.ones(3) * step\n"
        "    return torch.ones(1)\n",
        from_step=0,
        to_step=1,
    )
    assert ran.ok
    assert {event.step for event in ran.events()} == {0, 1}
    assert list(ran.contract("final")) == ["final"]


def test_threads_that_began_before_the_window_are_seen_in_it(programs: Programs):
    """They listen all the time, and record inside."""
    ran = programs.run(
        "import threading, torch\n"
        "def main(mark):\n"
        "    go, done = threading.Event(), threading.Event()\n"
        "    def work():\n"
        "        go.wait(); torch.ones(3).sin(); done.set()\n"
        "    thread = threading.Thread(target=work)\n"
        "    thread.start()\n"
        "    for step in range(3):\n"
        "        mark(step)\n"
        "        if step == 1:\n"
        "            go.set(); done.wait()\n"
        "    thread.join()\n",
        from_step=1,
        to_step=1,
    )
    assert [event.step for event in ran.events("aten.sin")] == [1]


def test_memory_does_not_grow_with_the_steps(programs: Programs):
    """300 steps more take less than 8 MB more."""
    ran = programs.run(TRAIN, "long", from_step=390, to_step=392)
    assert ran.ok
    begin, end = map(int, ran.stdout.split())
    assert end - begin < 8 << 10


def test_which_steps_lie_in_a_window():
    """Both ends belong to it."""
    assert [step for step in range(-1, 6) if step in Window(2, 4)] == [2, 3, 4]
    assert [step for step in range(-1, 3) if step in Window(None, 0)] == [-1, 0]
    assert 10**9 in Window(3, None)
    assert [str(window) for window in (Window(1, 2), Window(1, None), Window(None, 2))] == [
        "from step 1 to step 2", "from step 1 on", "up to step 2",
    ]  # fmt: skip


def test_a_window_that_shows_nothing_is_refused():
    """Ends that are swapped, and a level that records no operators."""
    for first, last, level in ((3, 2, "full"), (0, None, "contract"), (None, 4, "contract")):
        with pytest.raises(UsageError) as caught:
            require_window(first, last, level)
        assert caught.value.slug == "bad-window"
    require_window(2, 2, "full")
    require_window(None, None, "contract")
