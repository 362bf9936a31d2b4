"""The plugin's small parts by themselves."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.errors import UntestableError
from opguard_ci.recipe import parse_target
from pytest_opguard import node, xdist
from pytest_opguard.results import file_name, summary


@given(st.text(), st.text())
def test_file_names_are_safe_and_distinct(one: str, other: str) -> None:
    """A report's name holds letters that any file system takes, and two tests have two names."""
    assert re.fullmatch(r"[A-Za-z0-9._-]{9,120}", file_name(one))
    assert not file_name(one).startswith(".")
    assert (file_name(one) == file_name(other)) == (one == other)


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_any_node_id_has_a_target(name: str) -> None:
    """Whatever a test is called, its target is one that the command line takes."""
    target = node.target_of(f"tests/test_a.py::{name}")
    assert parse_target(target, "/").module == "pytest_opguard.node"
    assert node.target_of(f"tests/test_b.py::{name}") != target


def test_only_targets_are_collected() -> None:
    """The module has no attribute that is not a target's name, and refuses options that it did not make."""
    with pytest.raises(AttributeError):
        node.something  # noqa: B018
    with pytest.raises(UntestableError):
        node.pytest_arguments(["--cov=package", "recipe.py::train"])


def test_pytest_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's pytest takes the ini file that the session has, if the commit has it, and never one further up."""
    monkeypatch.chdir(tmp_path)
    assert "/dev/null" in node.pytest_arguments(["--ini=pytest.ini", "recipe.py::train"])
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    arguments = node.pytest_arguments(["--ini=pytest.ini", "--import-mode=importlib", "-p=helpers", "a.py::train"])
    assert arguments[arguments.index("-c") + 1] == "pytest.ini"
    assert {"--import-mode=importlib", "helpers", "addopts=", "--rootdir=."} <= set(arguments)
    assert arguments[-1] == "a.py::train"


def test_coverage_begins_in_a_measured_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of a measured session is measured, but not one that runs another commit."""
    started = []
    coverage = ModuleType("coverage")
    coverage.process_startup = lambda: started.append(1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "coverage", coverage)
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)
    node.start_coverage()
    assert started == []
    monkeypatch.setenv("COVERAGE_PROCESS_START", "pyproject.toml")
    node.start_coverage()
    assert started == [1]
    monkeypatch.setenv("OPGUARD_IMPORT_PLAN", "plan")
    node.start_coverage()
    assert started == [1]


def test_gpus_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker sees one of the GPUs that it may use, by turns; without GPUs nothing is set."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    xdist.claim_gpu(2)
    assert xdist.listed_gpus() == ["3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    xdist.claim_gpu(1)
    assert xdist.listed_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert xdist.listed_gpus(tmp_path / "no driver") == []
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
    assert xdist.listed_gpus(tmp_path) == ["0", "1"]


def test_summary_counts() -> None:
    """The summary names verdicts, commits with how they were had, environments and the folder."""
    documents = [
        {"verdict": "identical", "environment": "e1", "reference": {"commit": "a" * 40, "cached": True}},
        {"verdict": "diverged", "environment": "e1", "reference": {"commit": "a" * 40, "cached": False}},
        {"verdict": "error", "error": {}},
    ]
    assert summary(documents, Path("reports")) == (
        "opguard: 1 diverged, 1 error, 1 identical; reference aaaaaaaaaaaa (1 cached, 1 measured); environment e1; "
        "reports in reports"
    )
