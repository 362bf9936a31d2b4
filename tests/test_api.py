"""``capture`` and ``compare`` as a script or a notebook uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opguard_ci.errors import IncomparableError, UsageError

from .capture.conftest import programs, runner  # noqa: F401 - fixtures
from .capture.running import Programs

SCRIPT = """
import torch
import opguard_ci
from torch import nn

def train(folder, scale=1.0, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with opguard_ci.capture(folder, **options):
        for _ in range(3):
            loss = model(torch.randn(3, 4)).mul(scale).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model
"""


def test_a_block_is_captured_and_compared(programs: Programs):  # noqa: F811
    """Twice the same is identical; another constant is found at its operator."""
    ran = programs.run(
        f"""{SCRIPT}
def main():
    pass
if __name__ == "__main__":
    for folder, scale in (("a", 1.0), ("b", 1.0), ("c", 1.5)):
        train(folder, scale)
    print(opguard_ci.compare("a", "b").to_json()["verdict"])
    found = opguard_ci.compare("a", "c").to_json()
    print(found["verdict"], found["first_divergence"]["op"], found["first_divergence"]["step"])
""",
        None,
        bare=True,
    )
    assert ran.stdout.splitlines() == ["identical", "diverged aten.mul.Tensor 0"], ran.stderr


def test_an_error_of_the_block_passes_through(programs: Programs):  # noqa: F811
    """And the trace up to it is kept."""
    ran = programs.run(
        f"""{SCRIPT}
from opguard_ci.trace.reader import read_trace
if __name__ == "__main__":
    try:
        with opguard_ci.capture("broken"):
            torch.ones(3) * 2
            raise ValueError("mine")
    except ValueError as error:
        print(error)
    torch.ones(3) * 3
    manifest = read_trace("broken").manifest
    print(manifest["complete"], manifest["outcome"]["slug"], manifest["coverage"]["operators"] > 0)
""",
        None,
        bare=True,
    )
    assert ran.stdout.splitlines() == ["mine", "False target-raised True"], ran.stderr


def test_marks_levels_and_profiles(programs: Programs):  # noqa: F811
    """``mark_step`` inside, ``contract`` without operators, ``strict`` says what it could not set."""
    ran = programs.run(
        f"""{SCRIPT}
from opguard_ci.trace.reader import read_trace
if __name__ == "__main__":
    with opguard_ci.capture("marked", level="contract", profile="strict"):
        for step in range(2):
            opguard_ci.mark_step(step)
            torch.ones(3) * step
    manifest = read_trace("marked").manifest
    print([step["step"] for step in manifest["steps"]], manifest["coverage"]["operators"], manifest["level"])
    print(manifest["profile"], any("PYTHONHASHSEED" in note for note in manifest["notes"]))
    print(torch.are_deterministic_algorithms_enabled())
""",
        None,
        bare=True,
    )
    assert ran.stdout.splitlines() == ["[-1, 0, 1] 0 contract", "strict True", "True"], ran.stderr


def test_a_notebook_may_capture_again_and_again(programs: Programs):  # noqa: F811
    """Blocks one after the other, and an object that lives across them."""
    ran = programs.run(
        f"""{SCRIPT}
from opguard_ci.trace.reader import read_trace
if __name__ == "__main__":
    model = train("first")
    for name in ("second", "third"):
        with opguard_ci.capture(name):
            model(torch.ones(1, 4)).sum().backward()
    for name in ("first", "second", "third"):
        print(len([e for t in read_trace(name).steps() for e in t.events() if e.op == "aten.addmm.default"]))
""",
        None,
        bare=True,
    )
    assert ran.stdout.split() == ["3", "1", "1"], ran.stderr


@pytest.mark.parametrize(("options", "slug"), [({"level": "half"}, "bad-level"), ({"profile": "loose"}, "bad-profile")])
def test_arguments_out_of_range_are_refused(options: dict[str, Any], slug: str, tmp_path: Path):
    """Before anything is written."""
    import opguard_ci

    with pytest.raises(UsageError) as caught, opguard_ci.capture(tmp_path / "t", **options):
        raise AssertionError
    assert caught.value.slug == slug
    assert not (tmp_path / "t").exists()


def test_a_folder_that_is_not_free_is_refused(tmp_path: Path):
    """Nothing is overwritten."""
    import opguard_ci

    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "note").touch()
    with pytest.raises(UsageError, match="not empty"), opguard_ci.capture(tmp_path / "t"):
        raise AssertionError


def test_compare_refuses_what_is_no_trace(tmp_path: Path):
    """A usage error that names it."""
    import opguard_ci

    with pytest.raises((UsageError, IncomparableError), match="nothing"):
        opguard_ci.compare(tmp_path / "nothing", tmp_path / "nothing")
