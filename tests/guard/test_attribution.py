"""Environment or code: real changes of the machine crossed with a real change of the code."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.guard import Project, check
from opguard_ci.jobs import Asked, jobs_of
from opguard_ci.reference import Wanted, code_digest
from opguard_ci.report.check import reason, render_check
from opguard_ci.store.golden import Blessing, numerics_digest
from opguard_ci.store.recipes import recipe_id
from opguard_ci.trace.reader import read_trace
from tests.guarded import UNSTABLE, Guarded

WIDE = """\
import torch
from net import EPS, disturb


def train(mark):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.LayerNorm(64, eps=EPS), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        mark(step)
        loss = model(torch.randn(2048, 8)).softmax(0).square().sum() + disturb()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PLAIN = {"OMP_NUM_THREADS": "1"}
OTHERS = [{"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"}]


@pytest.fixture(autouse=True)
def own(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("CI", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)
    yield


def checked(repo: Guarded, missing: str | None = None, commit: str | None = None) -> dict[str, Any]:
    with Project(repo.dir) as project:
        (job,) = jobs_of(project, [repo.target], str(repo.dir), Asked())
        return check(project, job, Wanted(commit, missing)).document


def record(repo: Guarded) -> Path:
    """Make what the commit computes now its golden, without the second run of bless; returns the golden."""
    with Project(repo.dir) as project:
        (job,) = jobs_of(project, [repo.target], str(repo.dir), Asked())
        head = project.repository.head()
        run = project.commits.at(job, head)
        manifest = read_trace(run.trace).manifest
        code = code_digest(project.repository, head, project.goldens.folder)
        blessing = Blessing("Ada", "2026-01-01T00:00:00+00:00", "why", head, code, numerics_digest(manifest))
        recipe = recipe_id(job.target, job.cwd, str(project.root))
        return project.goldens.write(recipe, run.trace, blessing, {}).path


def text(document: dict[str, Any]) -> str:
    return "\n".join(line.text for line in render_check({"results": [document]}, strict=True))


@pytest.mark.parametrize("changed", OTHERS, ids=["threads", "instructions"])
def test_a_changed_machine_crossed_with_changed_code(
    changed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of four: what the environment did and what the code did are each told, with an operator of its own."""

    def machine(variables: dict[str, str]) -> None:
        monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    repo = Guarded(tmp_path / "r")
    repo.put("recipe.py", WIDE)
    repo.commit("another recipe")
    machine(PLAIN)
    record(repo)
    found = {}
    for code, eps in (("same", "1e-5"), ("other", "1e-3")):
        repo.net(eps=eps)
        for name, variables in (("same", PLAIN), ("other", changed)):
            machine(variables)
            found[name, code] = checked(repo, "reference")
    verdicts = {cell: document["verdict"] for cell, document in found.items()}
    assert verdicts == {
        ("same", "same"): "identical",
        ("other", "same"): "identical",  # the reference was run on this machine, and the code is innocent
        ("same", "other"): "diverged",
        ("other", "other"): "diverged",
    }
    parts = {
        cell: tuple(document["attribution"][part]["verdict"] for part in ("environment", "code"))
        for cell, document in found.items() if "attribution" in document
    }  # fmt: skip
    assert parts == {
        ("other", "same"): ("diverged", "identical"),
        ("same", "other"): ("identical", "diverged"),
        ("other", "other"): ("diverged", "diverged"),
    }
    both = found["other", "other"]["attribution"]
    assert both["code"]["first_divergence"]["op"] == "aten.native_layer_norm.default"
    assert both["code"]["first_divergence"]["cause"] == "arguments"
    assert both["environment"]["first_divergence"]["cause"] == "kernel"
    assert both["environment"]["differs"]
    assert found["other", "other"]["first_divergence"] == both["code"]["first_divergence"]
    assert reason(found["other", "same"]).startswith("the environment changed ")
    shown = text(found["other", "other"])
    assert "What the environment changed" in shown
    assert "kernel" in shown


READING = 'return torch.tensor(float(open("{file}").read()))'


def test_what_the_key_does_not_know(tmp_path: Path) -> None:
    """A file outside of the repository changed: the golden's own commit gives other numbers now, and so does today's,
    the same ones. With the code changed as well, only the code's part is the divergence.
    """
    file = tmp_path / "scale"
    file.write_text("1.0")
    repo = Guarded(tmp_path / "r")
    repo.change("reads a file", disturb=READING.format(file=file))
    golden = record(repo)
    file.write_text("2.0")
    document = checked(repo)
    assert (document["verdict"], document["first_divergence"]) == ("environment", None)
    part = document["attribution"]["environment"]
    assert part["first_divergence"]["step"] == 0
    assert document["attribution"]["code"]["verdict"] == "identical"
    assert document["contract"] == part["contract"] != []
    assert "the environment changed" in reason(document)
    assert "the code did not" in document["notes"][-1]
    repo.net(eps="1e-3", disturb=READING.format(file=file))
    document = checked(repo)
    assert document["verdict"] == "diverged"
    assert document["first_divergence"]["op"] == "aten.native_layer_norm.default"
    assert document["attribution"]["environment"]["verdict"] == "diverged"
    shutil.rmtree(golden.parent.parent / "objects")
    document = checked(repo)
    assert document["verdict"] == "diverged"
    assert document["attribution"]["environment"] == {
        "verdict": "diverged", "first_divergence": None, "contract": [], "differs": [],
        "notes": ["The golden's events are not on this machine, so the operator is not known."],
    }  # fmt: skip


def test_a_kept_reference_is_measured_again_before_code_is_blamed(tmp_path: Path) -> None:
    """What it read has changed since, and the working tree reads the same now."""
    file = tmp_path / "scale"
    file.write_text("1.0")
    repo = Guarded(tmp_path / "r")
    commit = repo.change("reads a file", disturb=READING.format(file=file))
    assert [checked(repo, commit=commit)["reference"]["cached"] for _ in range(2)] == [False, True]
    file.write_text("2.0")
    document = checked(repo, commit=commit)
    assert (document["verdict"], document["reference"]["cached"]) == ("identical", False)


def test_a_golden_whose_commit_is_gone(tmp_path: Path) -> None:
    """The verdict stands, and it is said that nobody knows which of the two it was."""
    repo = Guarded(tmp_path / "r")
    file = record(repo)
    file.write_text(file.read_text().replace(repo.first, "f" * 40).replace('"code": "', '"code": "0'))
    repo.net(eps="1e-3")
    document = checked(repo)
    assert document["verdict"] == "diverged"
    assert "attribution" not in document
    assert "is gone, so environment and code are not told apart" in document["notes"][-1]


def test_other_arguments_are_not_the_environment(tmp_path: Path) -> None:
    """A golden that was recorded with other arguments is not held against a run with today's."""
    repo = Guarded(tmp_path / "r")
    file = record(repo)
    file.write_text(file.read_text().replace('"argv": []', '"argv": ["--small"]'))
    repo.net(eps="1e-3")
    document = checked(repo)
    assert document["verdict"] == "diverged"
    assert "attribution" not in document
    assert any("other arguments" in note for note in document["notes"])


def test_what_does_not_repeat_itself_has_no_parts(tmp_path: Path) -> None:
    """Nothing follows from its differences."""
    repo = Guarded(tmp_path / "r")
    record(repo)
    repo.net(disturb=UNSTABLE)
    document = checked(repo)
    assert document["verdict"] == "unstable"
    assert "attribution" not in document
