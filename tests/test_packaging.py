"""What a user gets who installs the package."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("opguard_ci", "pytest_opguard")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built)


def test_wheel_holds_both_packages_whole(wheel: zipfile.ZipFile):
    """Every module, type marker and template of the two packages is in the wheel, and nothing of the tests."""
    kept = {name for name in wheel.namelist() if ".dist-info/" not in name}
    present = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert kept == present


def test_wheel_has_licence_and_commands(wheel: zipfile.ZipFile):
    """The licence travels along, and both names of the command are installed."""
    names = wheel.namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    entry_points = next(wheel.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert "opguard = opguard_ci.cli:main" in entry_points
    assert "opguard-ci = opguard_ci.cli:main" in entry_points


def test_sources_use_no_syntax_newer_than_promised():
    """Every module parses as the oldest Python that pyproject.toml allows."""
    promised = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert promised
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            ast.parse(path.read_text(), str(path), feature_version=(3, int(promised[1])))


@pytest.mark.parametrize("words", [["--help"], ["--version"]], ids=" ".join)
def test_help_and_version_import_no_torch(words: list[str]):
    """What only prints does not pay for torch."""
    probe = (
        "import sys\n"
        "from opguard_ci.cli import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code\n"
        "assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
