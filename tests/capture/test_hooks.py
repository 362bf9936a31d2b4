"""Threads in lanes of their own, processes that cannot be seen, loaders."""

from __future__ import annotations

import pytest

from .running import Programs

THREADS = """
import _thread, threading
from concurrent.futures import ThreadPoolExecutor
import torch
from opguard_ci import mark_step

def work(n):
    for _ in range(3):
        torch.full((2,), float(n)) * 2

class Worker(threading.Thread):
    def run(self):
        work(2)

def main(mark):
    mark(0)
    plain = threading.Thread(target=work, args=(1,))
    plain.start(); plain.join()
    own = Worker()
    own.start(); own.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work, 3).result()
    done = _thread.allocate_lock()
    done.acquire()
    def low():
        work(4)
        done.release()
    _thread.start_new_thread(low, ())
    done.acquire()
    timer = threading.Timer(0.01, work, (5,))
    timer.start(); timer.join()
    begun, stop, go = threading.Event(), threading.Event(), threading.Event()
    def long():
        work(6)
        begun.set()
        go.wait()
        work(7)
        stop.set()
    threading.Thread(target=long, daemon=True).start()
    begun.wait()
    torch.zeros(1) + 1
    mark(1)
    go.set()
    stop.wait()
"""


def test_threads_of_all_kinds_have_lanes_of_their_own(programs: Programs):
    """threading, subclasses, pools, _thread, timers, and threads that outlive a step; lanes repeat."""
    ran = programs.run(THREADS)
    assert ran.ok, ran.answer
    lanes: dict[str, set[int]] = {}
    for event in ran.events("aten.full"):
        lanes.setdefault(event.args.split("fill_value=")[1].split(",")[0], set()).add(event.lane)
    assert set(lanes) == {f"{n}.0" for n in range(1, 8)}
    assert all(len(found) == 1 for found in lanes.values())
    assert lanes["6.0"] == lanes["7.0"]
    assert len({lane for found in lanes.values() for lane in found}) == 6
    assert ran.digests == programs.again("program.py:main").digests
    assert ran.manifest["coverage"]["unseen"] == []


def test_threads_that_write_through_recorded_operators_are_no_foreign_writers(programs: Programs):
    """A producer thread fills a buffer that the main thread reads: neither overwritten nor hidden."""
    ran = programs.run(
        """
        import threading
        import torch
        def main():
            buffer = torch.zeros(1000)
            stop = threading.Event()
            def fill():
                n = 0
                while not stop.is_set():
                    buffer.fill_(n)
                    n += 1
            filler = threading.Thread(target=fill)
            filler.start()
            for _ in range(300):
                torch.addcmul(buffer, buffer, buffer)
            stop.set()
            filler.join()
        """
    )
    flags = {(r.flags & 1) for e in ran.events("aten.addcmul") for r in e.reads}
    assert flags == {0}
    assert not any(write.flags & 2 for event in ran.events() for write in event.writes)


FORKS = """
import multiprocessing, os, subprocess, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

def compute():
    torch.ones(3) * 2

def train():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

def idle():
    pass

def fork(target):
    train()
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start(); process.join()
    assert process.exitcode == 0

def fork_computes():
    fork(compute)

def fork_trains():
    fork(train)

def fork_idle():
    fork(idle)

def os_fork_returns():
    train()
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    torch.ones(3) * 2

def spawn():
    process = multiprocessing.get_context("spawn").Process(target=compute)
    process.start(); process.join()

def loader():
    list(DataLoader(TensorDataset(torch.ones(4, 2)), num_workers=2, persistent_workers=True))

def program():
    subprocess.run([sys.executable, "-c", "print(1)"], check=True, capture_output=True)
    os.system("true")
"""


@pytest.mark.parametrize(
    ("function", "unseen", "note"),
    [
        ("fork_computes", "forked", ""),
        ("fork_trains", "forked", ""),
        ("fork_idle", "", ""),
        ("os_fork_returns", "forked", ""),
        ("spawn", "spawn", ""),
        ("loader", "", "DataLoader workers"),
        ("program", "", ""),
    ],
)
def test_what_other_processes_compute(function: str, unseen: str, note: str, programs: Programs):
    """Operators in processes that the target made are unseen; loader workers are a note; others are nothing."""
    programs.write("program.py", FORKS)
    ran = programs.again(f"program.py:{function}")
    assert ran.ok, (ran.answer, ran.stderr)
    found = ran.manifest["coverage"]["unseen"]
    assert (unseen in " ".join(found)) if unseen else found == []
    notes = " ".join(ran.manifest["notes"])
    assert note in notes
    assert ("become untestable" in notes) == bool(unseen)
    assert ran.manifest["complete"]
    if "fork" in function:
        assert ran.steps == [0, 1, 2]  # what the child trained is not in the trace


def test_unseen_operators_may_be_allowed(programs: Programs):
    """``--allow-unseen`` is written where the comparison looks for it."""
    programs.write("program.py", FORKS)
    ran = programs.again("program.py:fork_computes", allow_unseen=True)
    assert ran.manifest["allow_unseen"] is True
    assert not any("become untestable" in note for note in ran.manifest["notes"])


def test_batches_of_workers_are_data_from_outside(programs: Programs):
    """Shared memory batches are read from outside in the phase ``data`` or after it, and never overwritten."""
    ran = programs.run(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        def main(mark):
            for step, (x,) in enumerate(DataLoader(TensorDataset(torch.arange(32.0)), 4, num_workers=2)):
                mark(step)
                x.mul_(2)
                x + 1
        """
    )
    reads = [event.reads[0] for event in ran.events("aten.mul_")]
    assert len(reads) == 8
    assert all(read.flags & 2 and not read.flags & 1 for read in reads)


def test_a_daemon_thread_that_is_still_running_at_the_end_does_no_harm(programs: Programs):
    """The run ends, its trace is complete."""
    ran = programs.run(
        """
        import threading, time
        import torch
        def forever():
            while True:
                torch.ones(2) * 2
                time.sleep(0.001)
        def main():
            threading.Thread(target=forever, daemon=True).start()
            time.sleep(0.05)
        """
    )
    assert ran.ok, ran.answer
    assert ran.manifest["complete"]
    assert ran.events("aten.mul")


def test_a_step_limit_reached_in_a_thread(programs: Programs):
    """A trainer that runs in a thread ends its step; the main thread comes to its own end."""
    ran = programs.run(
        """
        import threading
        import torch
        def train():
            model = torch.nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(5):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        def main():
            worker = threading.Thread(target=train)
            worker.start()
            worker.join()
        """,
        steps=2,
    )
    assert ran.ok, ran.answer
    assert ran.steps == [0, 1]
    assert "Traceback" not in ran.stderr


def test_lanes_follow_the_order_in_which_threads_were_started(programs: Programs):
    """Whichever of two threads computes first."""
    ran = programs.run(
        """
        import threading, time
        import torch
        def work(n):
            time.sleep(0.05 * (3 - n))
            torch.full((2,), float(n))
        def main():
            threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        """
    )
    assert sorted((event.lane, event.args.split("fill_value=")[1][0]) for event in ran.events("aten.full")) == [
        (1, "0"),
        (2, "1"),
        (3, "2"),
    ]


def test_a_replayed_cuda_graph_ran_unseen(programs: Programs):
    """Its kernels run without operators, so agreement proves nothing; a run without one has nothing unseen."""
    ran = programs.run(
        """
        import torch
        def main():
            try:
                torch.cuda.CUDAGraph.replay(None)  # without a GPU it fails after it was noticed
            except Exception:
                pass
        """
    )
    assert ran.ok, ran.answer
    (unseen,) = ran.manifest["coverage"]["unseen"]
    assert "CUDAGraph.replay" in unseen


def test_no_memory_for_a_fingerprint_leaves_a_tensor_unhashed(python_programs: Programs):
    """On the host and where tensors of a device share what they can: the run goes on, and coverage says so."""
    ran = python_programs.run(
        """
        import torch
        from opguard_ci.capture.fingerprint import cpu

        def full(*_):
            raise MemoryError("no memory for a copy")

        def main():
            x = torch.arange(12.0).view(3, 4)
            cpu.of_strided, before = full, cpu.of_strided
            y = x.t() * 2
            cpu.of_strided = before
            return {"y": y.contiguous()}
        """
    )
    assert ran.ok, ran.answer
    coverage = ran.manifest["coverage"]
    assert coverage["unseen"] == [] and coverage["hashed"] < coverage["operators"]
    assert any("no memory for a copy" in text for text in coverage["unhashed"])
    assert ran.contract()["final.y"].reads[0].value
