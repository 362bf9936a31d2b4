from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_ci.commands.replay import merge
from tests.cli.command import COMPARE_KEYS, opguard, opguard_json


def compared(verdict: str, first: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    base = {"schema": 1, "verdict": verdict, "first_divergence": first, "transient": [], "findings": []}
    return {**base, **changes}


def at(op: str, cause: str = "kernel") -> dict[str, Any]:
    return {"op": op, "cause": cause, "module": None, "phase": "forward", "step": 0}


def test_merge_of_equal_runs() -> None:
    """Runs that are all identical are identical."""
    assert merge([compared("identical"), compared("identical")], [])["verdict"] == "identical"


def test_merge_takes_the_worst() -> None:
    """One run in three that differs in passing makes the target equivalent, and is listed."""
    merged = merge([compared("identical"), compared("equivalent", transient=[at("aten.mm.default")])], [])
    assert merged["verdict"] == "equivalent" and merged["transient"] == [at("aten.mm.default")]


def test_merge_names_each_kind_once() -> None:
    """The first unstable operator is the divergence; others of another kind are listed beside it."""
    documents = [compared("diverged", at(op)) for op in ("aten.mm.default", "aten.mm.default", "aten.sum.default")]
    merged = merge(documents, [])
    assert merged["verdict"] == "unstable"
    assert merged["first_divergence"] == at("aten.mm.default") and merged["unstable"] == [at("aten.sum.default")]


def test_merge_keeps_findings_of_the_runs() -> None:
    """A finding that every run has is listed once."""
    finding = at("aten.add.Tensor", "overwritten")
    assert merge([compared("identical", findings=[finding])], [finding, finding])["findings"] == [finding]


def test_repeats_itself(project: Path) -> None:
    """A seeded training is identical, and leaves no trace behind."""
    code, document = opguard_json("replay", "training.py:train", cwd=project)
    assert (code, document["verdict"], document["first_divergence"]) == (0, "identical", None)
    assert document["runs"] == 2 and document["target"] == "training.py:train"
    assert sorted(path.name for path in project.iterdir() if path.name != "__pycache__") == ["training.py"]


def test_three_runs_kept(project: Path) -> None:
    """``--keep`` leaves the traces of all runs."""
    code, document = opguard_json("replay", "training.py:train", "-n", "3", "--keep", "traces", cwd=project)
    assert (code, document["runs"]) == (0, 3)
    assert sorted(path.name for path in (project / "traces").iterdir()) == ["run-0", "run-1", "run-2"]
    assert opguard_json("compare", "traces/run-0", "traces/run-2", cwd=project)[1]["verdict"] == "identical"


def test_unseeded_random_numbers(project: Path) -> None:
    """A target that draws without a seed is unstable, and the draw is named."""
    code, document = opguard_json("replay", "training.py:unseeded", cwd=project)
    assert (code, document["verdict"]) == (4, "unstable")
    first = document["first_divergence"]
    assert (first["op"], first["cause"], first["step"]) == ("aten.rand.default", "random", 0)
    done = opguard("replay", "training.py:unseeded", cwd=project)
    assert done.returncode == 4 and done.stdout.startswith("unstable: step 0, forward, aten.rand.default")


def test_strict_profile_seeds(project: Path) -> None:
    """What is unstable as it is can be stable under the pinned profile."""
    code, document = opguard_json("replay", "training.py:unseeded", "--profile", "strict", cwd=project)
    assert (code, document["verdict"], document["profile"]) == (0, "identical", "strict")


def test_order_of_a_set(project: Path) -> None:
    """The second run has another hash seed, so what depends on the order of hashes does not repeat itself."""
    code, document = opguard_json("replay", "training.py:hashes", cwd=project)
    assert (code, document["verdict"]) == (4, "unstable")


def test_untestable(project: Path) -> None:
    """A run that fails makes the replay untestable, with the user's traceback."""
    code, document = opguard_json("replay", "training.py:raises", cwd=project)
    assert (code, document["verdict"]) == (4, "untestable")
    assert "ValueError: bad batch" in document["error"]["traceback"] and document["trace"] is None
    assert set(document) >= COMPARE_KEYS and document["first_divergence"] is None


def test_used_folder(project: Path) -> None:
    """``--keep`` overwrites nothing."""
    code, document = opguard_json("replay", "training.py:train", "--keep", ".", cwd=project)
    assert (code, document["error"]["slug"]) == (2, "output-exists")


FLIPPED = """
import os
import torch

def train():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 8))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
    number = len(os.listdir("runs"))
    open(f"runs/{number}", "w").close()
    for step in range(3):
        (weight * torch.randn(3, 8)).sum().backward()
        if number == 3 and step == 1:
            weight.grad.numpy().view("uint32")[1, 4] ^= 1 << 13
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_flipped_bit_in_one_run_of_five(project: Path) -> None:
    """The machine is suspected: the run, the element and the bit are named, though nobody kept that tensor."""
    (project / "flipped.py").write_text(FLIPPED)
    (project / "runs").mkdir()
    code, document = opguard_json("replay", "flipped.py:train", "-n", "5", cwd=project)
    assert (code, document["verdict"]) == (4, "unstable")
    hardware = document["hardware"]
    assert (hardware["run"], hardware["runs"], hardware["op"], hardware["step"]) == (4, 5, "aten.add_.Tensor", 1)
    assert (hardware["elements"], hardware["bits"]) == ([[1, 4]], [13])


def test_nothing_to_diagnose(project: Path) -> None:
    """Where the runs agree, --diagnose says so."""
    code, document = opguard_json("replay", "training.py:train", "--diagnose", cwd=project)
    assert (code, document["verdict"]) == (0, "identical")
    assert "Nothing to diagnose" in document["notes"][-1]


RACES = """
import os
import torch

def train():
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (weight * torch.rand(8)).sum().backward()
    (weight * torch.tensor([float(byte) for byte in os.urandom(8)]).sin()).sum().backward()
    optimizer.step()
"""


def test_the_first_of_each_kind(project: Path) -> None:
    """A draw and data that do not repeat themselves, neither of which follows from the other."""
    (project / "races.py").write_text(RACES)
    _, document = opguard_json("replay", "races.py:train", cwd=project)
    found = [document["first_divergence"], *document["unstable"]]
    assert [item["op"] for item in found] == ["aten.rand.default", "aten.sin.default"]
    assert all(item["stack"] for item in found)
