from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opguard_ci.determinism import machine
from opguard_ci.determinism.environment import environment_document


def test_a_document_is_flat_text_and_stable() -> None:
    """Two readings of one process are equal, sorted, and all text."""
    document = environment_document()
    assert document == environment_document()
    assert list(document) == sorted(document)
    assert all(isinstance(value, str) and value for value in document.values())
    assert {"torch", "python", "system", "libc", "cpu.capability", "threads.intra_op", "package.numpy"} <= set(document)


def test_the_projects_own_packages_are_left_out() -> None:
    """A project that is itself on the list does not change its key with every version of itself."""
    assert "numpy" in machine.packages()
    assert "numpy" not in machine.packages(own={"numpy"})


def test_packages_of_the_project_folder_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata beside the target is not an installed package; what PYTHONPATH adds is."""
    info = tmp_path / "einops-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: einops\nVersion: 9.9\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert machine.packages().get("einops") != "9.9"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert machine.packages()["einops"] == "9.9"
