"""``@recipe``, ``mark_step``, targets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import opguard_ci
from opguard_ci.errors import UntestableError, UsageError
from opguard_ci.recipe import (
    RecipeOptions,
    check_callable,
    discover,
    load_function,
    mark_step,
    marking,
    options_of,
    parse_target,
    peek_profile,
    recipe,
)


def test_the_decorator_keeps_the_function_and_its_options():
    """The function can be called as before; what it promises is read back."""

    @recipe(steps=4, seed=3, profile="portable", level="contract", timeout=5)
    def train() -> int:
        return 1

    assert train() == 1
    options = options_of(train)
    assert options == RecipeOptions(4, 3, "portable", "contract", 5.0)
    assert options_of(len) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 0},
        {"steps": True},
        {"steps": 1.5},
        {"steps": 1, "seed": -1},
        {"steps": 1, "seed": 2**63},
        {"steps": 1, "profile": "loose"},
        {"steps": 1, "level": "everything"},
        {"steps": 1, "timeout": 0},
        {"steps": 1, "timeout": "long"},
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any]):
    """With the argument's name."""
    with pytest.raises(UsageError, match=list(arguments)[-1]) as caught:
        recipe(**arguments)
    assert caught.value.slug == "recipe-arguments"


def test_the_decorator_wants_its_arguments():
    """``@recipe`` alone says what to write."""
    with pytest.raises(UsageError, match=r"@recipe\(steps=4\)"):
        recipe(len, steps=1)  # type: ignore[arg-type]


def test_marks_reach_whoever_listens():
    """Nobody outside of a run."""
    seen: list[int] = []
    mark_step(1)
    with marking(seen.append):
        mark_step(2)
    mark_step(3)
    assert seen == [2]


def test_importing_the_package_costs_no_torch():
    """``recipe`` and ``mark_step`` may stand in any training script."""
    code = "import sys, opguard_ci; opguard_ci.mark_step(0); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert opguard_ci.__all__ == ["atol", "capture", "compare", "mark_step", "recipe", "rtol", "ulp"]


def test_the_three_forms_of_a_target(tmp_path: Path):
    """Module and function, file and function, script; absolute paths and names with dots and colons included."""
    (tmp_path / "a:b").mkdir()
    file = tmp_path / "a:b" / "train.py"
    file.touch()
    module = parse_target("package.module:Job.main", str(tmp_path))
    assert (module.file, module.module, module.function) == (None, "package.module", "Job.main")
    with_function = parse_target("a:b/train.py:main", str(tmp_path))
    assert (with_function.file, with_function.module, with_function.function) == (file.resolve(), None, "main")
    for text in ("a:b/train.py", str(file)):
        script = parse_target(text, str(tmp_path))
        assert (script.file, script.function) == (file.resolve(), None)


@given(st.text(max_size=20))
def test_any_other_text_is_refused_in_a_sentence(text: str):
    """Never a crash."""
    try:
        target = parse_target(text, "/nonexistent")
    except UsageError as error:
        assert error.slug in {"bad-target", "target-not-found"}
    else:
        assert target.module and target.function


def test_the_search_path_has_the_files_folder_then_the_tree(tmp_path: Path):
    """In the module form the working directory; ``src`` of the tree where there is one; nothing twice."""
    (tmp_path / "tree" / "src").mkdir(parents=True)
    (tmp_path / "tree" / "jobs").mkdir()
    (tmp_path / "tree" / "jobs" / "train.py").touch()
    tree, jobs = str(tmp_path / "tree"), str(tmp_path / "tree" / "jobs")
    assert parse_target("jobs/train.py:main", tree).search_path(tree, None) == [jobs, tree, f"{tree}/src"]
    assert parse_target("m:main", jobs).search_path(jobs, tree) == [jobs, tree, f"{tree}/src"]
    assert parse_target("m:main", tree).search_path(tree, tree) == [tree, f"{tree}/src"]


SOURCE = """
import opguard_ci
from opguard_ci import recipe
STEPS = 3
@recipe(steps=STEPS, seed=2)
def plain(): yield
@opguard_ci.recipe(steps=1, profile="portable")
def dotted(): yield
@recipe(steps=1, profile=NAME)
def computed(): yield
def nothing(): pass
"""


def test_decorations_are_read_without_running_the_file(tmp_path: Path):
    """The profile decides which server runs a target, before it is imported."""
    (tmp_path / "train.py").write_text(f"raise SystemExit\n{SOURCE}")
    found = discover(tmp_path / "train.py")
    assert list(found) == ["plain", "dotted", "computed"]
    assert found["plain"].literals == {"seed": 2}
    profiles = {name: peek_profile(f"train.py:{name}", str(tmp_path)) for name in (*found, "nothing")}
    assert profiles == {"plain": "strict", "dotted": "portable", "computed": "strict", "nothing": "observe"}
    assert peek_profile("train.py", str(tmp_path)) == "observe"
    assert peek_profile("train:dotted", str(tmp_path)) == "portable"
    assert peek_profile("absent.module:main", str(tmp_path)) == "observe"


def test_a_file_that_cannot_be_parsed_has_no_recipes(tmp_path: Path):
    """Running it will say what is wrong."""
    (tmp_path / "train.py").write_text("def main(:\n")
    assert discover(tmp_path / "train.py") == {}


def test_a_file_is_imported_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Once, so that it and what imports it share one module; another module of that name is no obstacle."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "json.py").write_text("def main(): return __name__, __file__")
    (tmp_path / "lonely_program.py").write_text("import lonely_program\ndef main(): return lonely_program.main is main")
    assert load_function(parse_target("json.py:main", str(tmp_path)))() == ("json", str(tmp_path / "json.py"))
    assert load_function(parse_target("lonely_program.py:main", str(tmp_path)))() is True


def test_which_arguments_a_target_may_have():
    """``mark``, defaults and variadic ones."""
    assert check_callable(lambda mark: None, "t")
    assert not check_callable(lambda size=1, *rest, **more: None, "t")
    assert check_callable(lambda mark=None: None, "t")
    with pytest.raises(UntestableError, match="size"):
        check_callable(lambda mark, size: None, "t")
