"""Zoom on real runs: each program has ``good`` and ``bad``, which are run, compared, and run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.compare import compare_traces
from opguard_ci.evidence.zoom import CannotZoomError, Side, Zoomed, zoom
from opguard_ci.trace.reader import read_trace
from opguard_ci.worker.commits import Run
from opguard_ci.worker.request import RunResult
from tests.capture.running import Programs, Ran

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

def train(work, mark, steps=3):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        mark(step)
        loss = work(model(torch.randn(3, 4)), step).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


class Pair:
    """The two sides of a program."""

    def __init__(self, programs: Programs, source: str, **options: Any) -> None:
        self.programs = programs
        self.options = options
        programs.write("program.py", HEAD + source)
        self.ran = {"reference": self.run("good"), "candidate": self.run("bad")}
        self.document: dict[str, Any] = compare_traces(*(each.trace for each in self.ran.values())).to_json()
        self.plans: list[Path | None] = []

    def run(self, function: str, **options: Any) -> Ran:
        ran = self.programs.again(f"program.py:{function}", **self.options, **options)
        assert ran.ok, ran.answer
        return ran

    def side(self, name: str, function: str, recorded_here: bool = True) -> Side:
        def again(plan: Path | None) -> Run:
            self.plans.append(plan)
            ran = self.run(function, keep=None if plan is None else str(plan))
            return Run(ran.folder, RunResult("ok", ran.answer, str(ran.folder), 0.0), None)

        return Side(name, self.ran[name].trace, again, recorded_here)

    def zoom(self, good: str = "good", bad: str = "bad", **options: bool) -> Zoomed:
        folder = self.programs.folder / "zoom"
        folder.mkdir()
        return zoom(self.document, self.side("reference", good, **options), self.side("candidate", bad), folder)

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.document["first_divergence"]["tensors"]
        json.dumps(rows, allow_nan=False)
        return rows


@pytest.fixture
def pair(programs: Programs) -> Callable[..., Pair]:
    return lambda source, **options: Pair(programs, source, **options)


def test_another_argument(pair: Callable[..., Pair]) -> None:
    """The outputs are measured, the equal input is left out; both runs stop right behind the operator."""
    found = pair("""
def good(mark):
    train(lambda x, step: F.gelu(x, approximate="tanh" if step == 1 else "none"), mark)
def bad(mark):
    train(lambda x, step: F.gelu(x), mark)
""")
    kept = found.zoom()
    assert found.document["verdict"] == "diverged"
    (row,) = found.rows
    assert (row["name"], row["role"], row["dtype"], row["shape"]) == ("output 0", "output", "float32", [3, 4])
    assert 0 < row["different"] <= row["elements"] == 12
    assert row["max_ulp"] >= row["median_ulp"] > 0
    assert 0 < row["max_abs"] < 1e-3
    assert kept.calls["reference"].entry["op"] == kept.calls["candidate"].entry["op"] == "aten.gelu.default"
    for plan in found.plans:
        assert plan is not None
        assert (plan.parent / "0-after.safetensors").exists()
    runs = [read_trace(folder / "trace") for folder in sorted(found.programs.folder.glob("run-*"))[2:]]
    for run in runs:
        *_, last = run.steps()
        assert last.event(len(last) - 1).op == "aten.gelu.default"
        assert last.step == 1


def test_an_operand_changed_in_hiding(pair: Callable[..., Pair]) -> None:
    """The operand that differs comes first, then what came of it; in-place arguments count as written."""
    found = pair("""
def poke(x, flip):
    if flip:
        x.detach().numpy().view("uint32")[1, 2] ^= 1 << 20
    return x
def good(mark):
    train(lambda x, step: poke(x * 1, False).add_(0.5), mark)
def bad(mark):
    train(lambda x, step: poke(x * 1, step == 2).add_(0.5), mark)
""")
    found.zoom()
    assert found.document["first_divergence"]["cause"] == "overwritten"
    operand, written = found.rows
    assert (operand["name"], operand["role"], written["role"]) == ("self", "input", "written")
    assert operand["flips"]["bits"] == {"20": 1}
    assert operand["region"]["box"] == [[1, 2], [2, 3]]
    assert written["different"] == 1


def test_a_batch_in_another_order(pair: Callable[..., Pair]) -> None:
    """The detail says that the rows are the same, and where they were."""
    found = pair(
        """
def samples(order, step):
    rows = np.arange(12, dtype="f").reshape(3, 4) + step
    return torch.from_numpy(rows[order] if step else rows)
def good(mark):
    train(lambda x, step: x * samples([0, 1, 2], step), mark)
def bad(mark):
    train(lambda x, step: x * samples([2, 1, 0], step), mark)
""".replace("def samples", "import numpy as np\n\ndef samples")
    )
    found.zoom()
    first = found.document["first_divergence"]
    assert first["cause"] == "data"
    assert first["detail"].endswith("the same 3 rows in another order (row 0 was row 2, row 2 was row 0)")


def test_replaced_operators_are_compared_by_what_came_out(pair: Callable[..., Pair]) -> None:
    """Where no call has a counterpart, the last ones of the two blocks are measured."""
    found = pair("""
def good(mark):
    train(lambda x, step: F.softplus(x), mark)
def bad(mark):
    train(lambda x, step: x.exp().log1p(), mark)
""")
    found.zoom()
    assert found.document["first_divergence"]["cause"] == "code"
    assert [(row["name"], row["dtype"], row["shape"]) for row in found.rows] == [("output 0", "float32", [3, 4])]


def test_what_only_one_side_does_shows_in_the_contract(pair: Callable[..., Pair]) -> None:
    """The first contract value that differs is measured; the operator is kept all the same."""
    found = pair("""
def good(mark):
    train(lambda x, step: x, mark)
def bad(mark):
    train(lambda x, step: x + x.sum() if step == 1 else x, mark)
""")
    kept = found.zoom()
    (row,) = found.rows
    assert (row["name"], row["role"], row["elements"]) == ("loss", "contract", 1)
    assert list(kept.calls) == ["candidate"]


def test_contract_level(pair: Callable[..., Pair]) -> None:
    """Without operators the contract value is what there is."""
    found = pair(
        """
def good(mark):
    train(lambda x, step: x, mark)
def bad(mark):
    train(lambda x, step: x * (1 + 1e-6), mark)
""",
        level="contract",
    )
    found.zoom()
    assert [row["role"] for row in found.rows] == ["contract"]


def test_other_dtypes_and_shapes(pair: Callable[..., Pair]) -> None:
    """Are said of the tensor in question."""
    found = pair("""
def good(mark):
    train(lambda x, step: x + torch.randn(4), mark)
def bad(mark):
    train(lambda x, step: x + torch.randn(3, 4), mark)
""")
    found.zoom()
    (row,) = found.rows
    assert (row["shape"], row["reference_shape"], row["different"]) == ([3, 4], [4], None)


def test_what_cannot_be_saved_is_named(pair: Callable[..., Pair]) -> None:
    """A sparse operand has no elements side by side."""
    found = pair("""
import numpy as np
def work(x, last):
    return torch.sparse.mm(torch.from_numpy(np.diag([1, 1, last]).astype("float32")).to_sparse(), x)
def good(mark):
    train(lambda x, step: work(x, 1.0), mark)
def bad(mark):
    train(lambda x, step: work(x, 2.0), mark)
""")
    found.document["first_divergence"]["events"] = {
        side: next(event.index for event in ran.events("aten._sparse_addmm")) for side, ran in found.ran.items()
    }
    found.zoom()
    sparse = next(row for row in found.rows if row["role"] == "input")
    assert (sparse["dtype"], sparse["shape"], sparse["different"]) == ("float32", [3, 3], None)
    assert "layout is sparse_coo" in sparse["note"]
    assert found.rows[-1]["different"] == 4


def test_a_side_that_does_not_repeat_itself(pair: Callable[..., Pair]) -> None:
    """Makes the verdict unstable, with the divergence between its own runs."""
    found = pair("""
import time
def good(mark):
    train(lambda x, step: x, mark)
def bad(mark):
    train(lambda x, step: x * (time.time_ns() % 1_000_003), mark)
""")
    found.zoom()
    assert found.document["verdict"] == "unstable"
    assert "does not repeat itself" in found.document["notes"][-1]
    assert found.plans[-1] is None


def test_another_way_to_the_same_numbers_proves_nothing(pair: Callable[..., Pair]) -> None:
    """A repeat that takes another course but computes the same leaves the verdict alone, and says so."""
    found = pair("""
import time
def good(mark):
    train(lambda x, step: x, mark)
def bad(mark):
    for _ in range(time.time_ns() // 1000 % 1000):
        torch.ones(1) + 1
    train(lambda x, step: x * 1.5, mark)
""")
    found.zoom()
    assert found.document["verdict"] == "diverged"
    assert "Not zoomed" in found.document["notes"][-1]


def test_a_golden_that_is_not_what_its_commit_computes_here(pair: Callable[..., Pair]) -> None:
    """Says nothing about the target: a note, and the verdict stays."""
    found = pair("""
def good(mark):
    train(lambda x, step: x * 2, mark)
def bad(mark):
    train(lambda x, step: x * 3, mark)
""")
    found.zoom(good="bad", recorded_here=False)
    assert found.document["verdict"] == "diverged"
    assert "golden" in found.document["notes"][-1]


def test_another_environment_is_refused(pair: Callable[..., Pair]) -> None:
    """The recorded numbers cannot be had here."""
    found = pair("""
def good(mark):
    train(lambda x, step: x * 2, mark)
def bad(mark):
    train(lambda x, step: x * 3, mark)
""")
    trace = found.ran["reference"].trace
    trace.manifest["environment"]["key"] = "0" * 16
    found.ran["reference"] = type("Elsewhere", (), {"trace": trace})()
    with pytest.raises(CannotZoomError, match="environment 0000"):
        found.zoom()


def test_many_kinds_of_tensors(pair: Callable[..., Pair]) -> None:
    """Each dtype comes back bit by bit, strided or not, with what it means."""
    found = pair(
        """
DTYPES = [torch.bfloat16, torch.float64, torch.complex128, torch.float8_e4m3fn, torch.int64, torch.bool]
def tensors():
    torch.manual_seed(3)
    return [(torch.randn(4, 6) * 3).to(dtype).t() for dtype in DTYPES]
def run(change, mark):
    mark(0)
    values = tensors()
    if change:
        values[change - 1].t().view(torch.uint8 if values[change - 1].itemsize == 1 else torch.int16)[1, 1] ^= 1
    return {str(n): v.clone() for n, v in enumerate(values)}
def good(mark):
    return run(0, mark)
def bad(mark):
    return run(KIND, mark)
""".replace("KIND", "6")
    )
    for number in range(1, 7):
        place = found.programs.folder / "program.py"
        place.write_text(place.read_text().replace(f"run({number - 1 or 6}, mark)", f"run({number}, mark)"))
        found.ran["candidate"] = found.run("bad")
        found.document = compare_traces(found.ran["reference"].trace, found.ran["candidate"].trace).to_json()
        found.zoom()
        row = found.rows[-1]
        assert (row["different"], row["elements"]) == (1, 24), row
        (found.programs.folder / "zoom").rename(found.programs.folder / f"zoom-{number}")
