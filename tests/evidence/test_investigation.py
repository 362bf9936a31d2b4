"""``opguard investigate`` on real runs, in this Python and in one that has nothing of ours."""

from __future__ import annotations

import json
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.errors import UsageError
from opguard_ci.evidence.investigation import parse_command
from tests.cli.command import COMPARE_KEYS, opguard

pytestmark = pytest.mark.usefixtures("shared_servers")

SCRIPT = """\
import sys
import torch
from torch import nn

print("eps", sys.argv[1:])
torch.manual_seed(0)
norm = nn.LayerNorm(64, eps=float(sys.argv[1]))
model = nn.Sequential(nn.Linear(8, 64), norm, nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.randn(2048, 8)).softmax(0).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def investigated(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = opguard("investigate", "--json", *words, cwd=folder)
    return done.returncode, json.loads(done.stdout)


def test_code_and_environment_are_told_apart(folder: Path) -> None:
    """A's command is also run under B's variables: the threads' part and the argument's part are each named."""
    words = ["--a", "script.py 1e-5", "--b", "python script.py 1e-3", "--python-b", sys.executable]
    variables = ["--env-a", "OMP_NUM_THREADS=1", "--env-b", "OMP_NUM_THREADS=2"]
    code, document = investigated(folder, *words, *variables, "-o", "report.md", "--keep", "kept")
    assert (code, document["verdict"]) == (1, "diverged")
    parts = document["attribution"]
    assert parts["code"]["first_divergence"]["op"] == "aten.native_layer_norm.default"
    assert parts["environment"]["first_divergence"]["cause"] == "kernel"
    assert [document[name]["replay"]["verdict"] for name in ("a", "b")] == ["identical", "identical"]
    assert any(tensor["different"] for tensor in document["first_divergence"]["tensors"])
    report = (folder / "report.md").read_text()
    assert "max ulp" in report
    assert "intra-op threads: 1 -> 2" in report
    assert "opguard investigate --a" in report
    assert Path(document["candidate"]["trace"], "manifest.json").exists()
    assert {entry.name for entry in (folder / "kept").iterdir()} == {"a-1", "a-2", "b-1", "b-2", "a-inside-b"}


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A virtual environment with torch, and neither opguard_ci nor what it needs beside torch."""
    place = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    for entry in Path(site.getsitepackages()[0]).iterdir():
        if (
            not entry.name.lower().startswith(
                ("opguard", "__editable__", "_opguard", "xxhash", "pyarrow", "_virtualenv")
            )
            and entry.suffix != ".pth"
        ):
            (packages / entry.name).symlink_to(entry)
    return place / "bin" / "python"


def test_a_python_that_has_only_torch(folder: Path, bare_python: Path) -> None:
    """Nothing is installed in it, and what it computes is the same."""
    lacks = "import importlib.util as u; assert not u.find_spec('xxhash') and not u.find_spec('opguard_ci')"
    subprocess.run([str(bare_python), "-c", lacks], check=True, cwd=folder)
    before = sorted(path for path in bare_python.parents[1].rglob("*") if not path.is_symlink())
    code, document = investigated(folder, "--a", "script.py 1e-5", "--b", f"{bare_python} script.py 1e-5")
    assert (code, document["verdict"]) == (0, "identical"), document
    assert document["b"]["python"] == str(bare_python)
    assert sorted(path for path in bare_python.parents[1].rglob("*") if not path.is_symlink()) == before


def test_a_python_without_torch(folder: Path, tmp_path: Path) -> None:
    """Is refused by name, and so is what is no Python."""
    place = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    code, document = investigated(folder, "--a", "script.py 1e-5", "--b", f"{place}/bin/python script.py 1e-5")
    assert (code, document["error"]["slug"]) == (2, "python-lacks")
    assert "no torch and no numpy" in document["error"]["message"]
    code, document = investigated(folder, "--a", "script.py 1", "--b", "script.py 1", "--python-b", "/bin/false")
    assert (code, document["error"]["slug"]) == (2, "python-not-found")


def test_a_target_that_is_not_there(folder: Path) -> None:
    """Is told before anything is started, also if it is B's."""
    code, document = investigated(folder, "--a", "script.py 1e-5", "--b", "other.py", "--keep", "kept")
    assert (code, document["error"]["slug"]) == (2, "target-not-found")
    assert not (folder / "kept").exists()


def test_a_side_that_breaks(folder: Path) -> None:
    """Is untestable, with its traceback; nothing else is run."""
    code, document = investigated(folder, "--a", "script.py many", "--b", "script.py 1e-5")
    assert (code, document["verdict"], document["error"]["slug"]) == (4, "untestable", "target-raised")
    assert set(document) >= COMPARE_KEYS
    assert document["notes"][0] == "This is A."
    assert "many" in document["error"]["traceback"]


def test_a_command_as_in_a_shell() -> None:
    """Variables and a Python may stand in it; ours are stronger."""
    found = parse_command("X=1 Y=2 python 'my file.py' --lr '0 1' X=3", sys.executable, {"Y": "4"})
    assert (found.target, found.argv, found.python) == ("my file.py", ("--lr", "0 1", "X=3"), None)
    assert found.variables == {"X": "1", "Y": "4"}
    assert found.text == "'my file.py' --lr '0 1' X=3"


@pytest.mark.parametrize(("text", "slug"), [
    ("", "bad-command"), ("python", "bad-command"), ("python -m pkg", "bad-command"), ("X=1", "bad-command"),
    ("script.py 'open", "bad-command"), ("/nowhere/python3 script.py", "python-not-found"),
])  # fmt: skip
def test_a_command_that_makes_no_sense(text: str, slug: str) -> None:
    """Is one sentence that shows how it is written."""
    with pytest.raises(UsageError) as caught:
        parse_command(text, None, {})
    assert caught.value.slug == slug
