"""Captured runs on a CUDA device: the same bits as bare, no waiting inside a step, traces that compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from opguard_ci.capture.fingerprint import cpu, mix64
from opguard_ci.compare.verdict import compare_traces
from opguard_ci.trace.model import ASSUMED
from opguard_ci.trace.reader import read_trace
from opguard_ci.worker import client
from opguard_ci.worker.request import RunRequest
from tests.capture.running import Programs, Runner
from tests.capture.test_late import COUNTING, check_counts

HEAD = """
import hashlib
import os

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
from torch import nn
import torch.nn.functional as F
from tests.benchmarks.data.workloads import GPT


def digest(model, loss):
    state = [loss.detach(), *model.state_dict().values(), *(p.grad for p in model.parameters() if p.grad is not None)]
    parts = [t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for t in state]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def training(compiled=False, dropout=0.1):
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(0)
    model = GPT(128, 2, 4, 1000, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    call = torch.compile(model) if compiled else model
    ids = torch.randint(0, 1000, (4, 64), device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = F.dropout(call(ids), dropout)
            loss = F.cross_entropy(logits.view(-1, 1000), ids.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    return model, step
"""

PROGRAMS = {
    "eager": """
def main():
    model, step = training()
    for _ in range(4):
        print(digest(model, step()))
""",
    "compiled": """
def main():
    model, step = training(compiled=True)
    for _ in range(4):
        print(digest(model, step()))
    print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
""",
    "convolutions": """
def main():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    model = nn.Sequential(*layers).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    for _ in range(4):
        x = torch.randn(6, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
        loss = F.cross_entropy(model(x), torch.randint(0, 5, (6,), device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(digest(model, loss))
""",
    "streams": """
def main():
    model, step = training()
    side = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    for _ in range(4):
        loss = step()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x
            for n in range(20):
                y = y * 1.01 + n
        torch.cuda.current_stream().wait_stream(side)
        x = y * 1e-6
        print(digest(model, loss), x.sum().item())
""",
}

NO_WAITING = """
def main(mark):
    model, step = training()
    for number in range(6):
        mark(number)
        if number == 2:
            torch.cuda.set_sync_debug_mode("error")
        step()
    torch.cuda.set_sync_debug_mode("default")
"""

RECIPE = """
from opguard_ci import recipe

@recipe(steps=3)
def small():
    model, step = training()
    for _ in range(3):
        loss = step()
        yield {"loss": loss, "model": model}
"""

OUT_OF_SIGHT = """
def main(mark):
    import ctypes

    x = torch.zeros(1000, device="cuda")
    fill = ctypes.CDLL("libcuda.so.1").cuMemsetD8_v2
    for number in range(3):
        mark(number)
        x += 1
        torch.cuda.synchronize()
        if number == 1:
            assert fill(ctypes.c_void_p(x.data_ptr() + 40), ctypes.c_ubyte(7), ctypes.c_size_t(8)) == 0
            torch.cuda.synchronize()
        y = x * 2
"""


REPLAYED = """
def main(mark):
    graph, x = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
    for _ in range(4):
        (x * 2).sum()
    with torch.cuda.graph(graph):
        y = x * 2
    for number in range(3):
        mark(number)
        x += 1
        graph.replay()
        y.sum()
"""

COUNTED = f"""{COUNTING}
def main(mark):
    model, step = training()
    counted(mark, step)
"""


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner()


@pytest.fixture
def programs(runner: Runner, tmp_path: Path) -> Programs:
    return Programs(runner, tmp_path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits_watched_or_not(name: str, programs: Programs):
    """Losses, gradients and parameters of every step; nothing unseen or unhashed; traces of both levels are equal."""
    source = HEAD + PROGRAMS[name]
    bare = programs.run(source, bare=True)
    assert bare.stdout.strip(), bare.stderr
    captured = [programs.run(source, level=level) for level in ("full", "full", "op", "contract")]
    for ran in captured:
        assert ran.ok, ran.answer
        assert ran.stdout == bare.stdout
        assert ran.answer["coverage"]["unhashed"] == []
        assert ran.manifest["scheme"] == f"{cpu.SCHEME}+{mix64.SCHEME}"
        assert not any("Triton" in note for note in ran.manifest["notes"])
    assert captured[0].answer["coverage"]["unseen"] == []
    for other in captured[1:3]:
        assert captured[0].digests == other.digests
        assert compare_traces(captured[0].trace, other.trace).to_json()["verdict"] == "identical"


def test_no_waiting_inside_a_step(programs: Programs):
    """From the second step on nothing waits for the device."""
    ran = programs.run(HEAD + NO_WAITING)
    assert ran.ok, ran.answer
    assert ran.steps == [-1, 0, 1, 2, 3, 4, 5] or ran.steps == [0, 1, 2, 3, 4, 5]


def test_level_op_hashes_outputs_alone(programs: Programs):
    """Once every operator was called four times, what is hashed are the outputs and the contract, and no input."""
    ran = programs.run(HEAD + COUNTED, level="op")
    assert ran.ok, ran.answer
    check_counts(ran)


def test_memory_written_out_of_sight(programs: Programs):
    """Bytes that something else than an operator wrote are marked where they are read."""
    ran = programs.run(HEAD + OUT_OF_SIGHT)
    assert ran.ok, ran.answer
    reads = [(event.step, event.reads[0].flags & 1) for event in ran.events("aten.mul")]
    assert reads == [(0, 0), (1, 1), (2, 0)]


def test_recorded_graphs_are_looked_at(programs: Programs):
    """What a CUDA graph writes when it is replayed is nobody's operator: at level op its memory is always looked at."""
    ran = programs.run(HEAD + REPLAYED, level="op")
    assert ran.ok, ran.answer
    sums = [event for event in ran.events("aten.sum") if event.step >= 0]
    assert [bool(event.reads[0].flags & ASSUMED) for event in sums] == [False] * 3
    assert len({event.reads[0].value for event in sums}) == 3


def test_a_recipe_in_a_forked_child(own_cache: None, tmp_path: Path):
    """A CUDA recipe runs in a child of a server; a changed eps is found by operator, module and cause."""
    traces = []
    for number, eps in enumerate(("1e-5", "1e-5", "1e-6")):
        source = HEAD.replace("GPT(128, 2, 4, 1000, 64)", "changed(GPT(128, 2, 4, 1000, 64))") + RECIPE
        source += f"\n\ndef changed(model):\n    model.blocks[1].ln2.eps = {eps}\n    return model\n"
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "program.py").write_text(source)
        root = str(Path(__file__).parents[2])
        request = RunRequest("program.py:small", cwd=str(folder), output=str(folder / "trace"), root=root)
        result = client.run(request)
        assert result.status == "ok", result.outcome
        traces.append(read_trace(folder / "trace"))
    assert compare_traces(*traces[:2]).to_json()["verdict"] == "identical"
    found = compare_traces(traces[0], traces[2]).to_json()
    assert found["verdict"] == "diverged"
    first = found["first_divergence"]
    assert (first["op"], first["module"], first["cause"]) == (
        "aten.native_layer_norm.default",
        "blocks.1.ln2",
        "arguments",
    )
