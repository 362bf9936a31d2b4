"""Verdicts as outcomes of tests, and what reports say about them."""

from __future__ import annotations

import json
import shlex
from xml.etree import ElementTree

import pytest

from tests.gitrepo import fingerprint
from tests.pytest_opguard.conftest import RECIPE, Project, bisected, line_with, text_of

pytest_plugins = "pytester"


def test_rename_passes(project: Project) -> None:
    """A refactoring passes against the commit before; the header names reference, how it was had, key and profile."""
    project.edit("model", "network")
    project.edit('"network": network', '"model": network')
    project.git.commit("rename")
    first = project.pytest("recipe.py", "--opguard-reference=HEAD~1")
    first.assert_outcomes(passed=1)
    line = line_with(text_of(first), r"^opguard: reference [0-9a-f]{12} \(measured\), environment [0-9a-f]{16}")
    assert line.endswith("profile strict")
    assert project.first[:12] in line
    second = project.pytest("recipe.py", "--opguard-reference=HEAD~1")
    assert line_with(text_of(second), r"^opguard: reference [0-9a-f]{12} \(cached\)")
    assert line_with(text_of(second), r"^opguard: 1 identical; reference [0-9a-f]{12} \(cached\)")


def test_changed_numerics_fail(project: Project) -> None:
    """A changed eps fails with the operator, its source line and, at the end, the command that finds the commit.

    The user's checkout, index and .git stay as they were.
    """
    project.edit()
    project.git.commit("eps")
    head = project.git.git("rev-parse", "HEAD")
    project.pytest("recipe.py", "--collect-only")  # leaves what Python compiles at any import of the project
    before = fingerprint(project.dir)
    result = project.spawn(
        "recipe.py", "--opguard-reference=HEAD~1", "-p", "no:cacheprovider",
        f"--opguard-report={project.dir.parent / 'reports'}", f"--junitxml={project.dir.parent / 'junit.xml'}",
    )  # fmt: skip
    assert result.returncode == 1, result.stdout + result.stderr
    assert fingerprint(project.dir) == before
    (file,) = (project.dir.parent / "reports").glob("*.txt")
    report = file.read_text().splitlines()
    assert report[0] == "diverged: step 0, forward, aten.native_layer_norm.default in 1: arguments"
    assert any("eps 1e-05 -> 0.001" in line for line in report)
    assert any("lib.py:12" in line for line in report)
    assert report[-1] == f"opguard bisect --good {project.first} --bad {head} recipe.py:train"
    assert file.read_text() in result.stdout
    assert "FAILED recipe.py::train - opguard: diverged: step 0" in result.stdout

    (case,) = ElementTree.parse(project.dir.parent / "junit.xml").getroot().iter("testcase")
    properties = {found.get("name"): found.get("value") for found in case.iter("property")}
    assert properties["verdict"] == "diverged"
    assert properties["reference"] == project.first
    assert properties["op"] == "aten.native_layer_norm.default"
    assert properties["step"] == "0"
    assert len(str(properties["environment"])) == 16
    (failure,) = case.iter("failure")
    assert str(failure.text).rstrip().endswith("recipe.py:train")

    (document,) = [json.loads(file.read_text()) for file in (project.dir.parent / "reports").glob("*.json")]
    assert document["verdict"] == "diverged"
    assert document["nodeid"] == "recipe.py::train"
    assert document["candidate"]["commit"] == head


def test_equivalent_passes_unless_strict(project: Project) -> None:
    """An operator that changes no contract value passes, with the report at hand; --opguard-strict fails it."""
    project.edit("        loss.backward()", "        loss * 2\n        loss.backward()")
    project.git.commit("an idle operator")
    passed = project.pytest("recipe.py", "--opguard-reference=HEAD~1", "-rA")
    passed.assert_outcomes(passed=1)
    assert "equivalent: every contract value is bit-equal" in text_of(passed)
    assert "2 operators inserted" in text_of(passed)
    failed = project.pytest("recipe.py", "--opguard-reference=HEAD~1", "--opguard-strict")
    failed.assert_outcomes(failed=1)
    assert "equivalent fails here" in text_of(failed)


def test_raising_recipe_fails(project: Project) -> None:
    """A recipe that raises is untestable and fails, with the user's own traceback."""
    project.write(recipe=RECIPE.replace("    yield from run()", "    yield next(run())\n    raise ValueError('bad')"))
    result = project.pytest("recipe.py", "--opguard-reference=HEAD")
    result.assert_outcomes(failed=1)
    assert "untestable: recipe.py:train raised ValueError: bad [target-raised]" in text_of(result)
    assert 'recipe.py", line 8, in train' in text_of(result)
    assert "opguard_ci/" not in text_of(result)


def test_flaky_recipe_is_unstable(project: Project) -> None:
    """A recipe that does not repeat itself fails as unstable, not as changed."""
    project.write(
        recipe=RECIPE.replace("yield from run()", "import os, torch\n"
                              "    for _ in range(2):\n"
                              "        yield {'loss': torch.tensor(list(os.urandom(8))) * 2}")
    )  # fmt: skip
    project.git.commit("flaky")
    result = project.pytest("recipe.py", "--opguard-reference=HEAD")
    result.assert_outcomes(failed=1)
    assert "\nunstable: step 0" in text_of(result)
    assert "opguard bisect" not in text_of(result)


def test_untestable_reference_is_an_error(project: Project) -> None:
    """A reference that cannot be run says nothing about the working tree: an error of the setup, no failure."""
    project.edit("EPS = 1e-5", "EPS = 1 / 0")
    broken = project.git.commit("broken")
    project.edit("EPS = 1 / 0", "EPS = 1e-5")
    project.git.commit("mended")
    result = project.pytest("recipe.py", "--opguard-reference=HEAD~1")
    result.assert_outcomes(errors=1)
    assert "ERROR at setup of train" in text_of(result)
    assert "ZeroDivisionError" in text_of(result)
    assert broken[:12] in text_of(result)


def test_defect_of_ours_is_an_error(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in opguard_ci itself is an error with a file to attach, whatever phase it happens in."""

    def fails(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("opguard_ci.guard.check", fails)
    result = project.pytest("recipe.py", "--opguard-reference=HEAD")
    result.assert_outcomes(errors=1)
    assert "opguard_ci itself failed (RuntimeError: a defect)" in text_of(result)


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_unknown_commit_is_one_usage_error(project: Project, options: tuple[str, ...]) -> None:
    """A commit that does not exist ends the session before any test, in one line, with pytest's exit code 4."""
    result = project.spawn("recipe.py", "--opguard-reference=no-such-commit", *options)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    told = line_with(result.stdout + result.stderr, "no-such-commit.*unknown-commit")
    assert told.startswith("ERROR: opguard: ")
    assert "INTERNALERROR" not in result.stdout + result.stderr


def test_without_any_reference(project: Project) -> None:
    """Without a golden a recipe fails and says how to record one; --opguard-missing may skip it or take a commit."""
    failed = project.pytest("recipe.py")
    failed.assert_outcomes(failed=1)
    assert "opguard bless recipe.py:train" in text_of(failed)
    project.pytest("recipe.py", "--opguard-missing=fail").assert_outcomes(failed=1)
    skipped = project.pytest("recipe.py", "--opguard-missing=skip", "-rs")
    skipped.assert_outcomes(skipped=1)
    assert "no-reference: There is no golden" in text_of(skipped)
    measured = project.pytest("recipe.py", "--opguard-missing=reference")  # the merge base with main: HEAD
    measured.assert_outcomes(passed=1)
    assert project.first[:12] in line_with(text_of(measured), "^opguard: 1 identical")


def test_goldens(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """--opguard-bless records goldens on a clean tree and outside of CI; later sessions compare with them."""
    blessed = project.pytest("recipe.py", "--opguard-bless=the first numbers", "-rA")
    blessed.assert_outcomes(passed=1)
    (golden,) = (project.dir / "golden").glob("recipe.py_train-*/*.json")
    assert json.loads(golden.read_text())["why"] == "the first numbers"
    assert f"golden {golden.relative_to(project.dir)}: none -> " in text_of(blessed)
    assert "  git add golden" in text_of(blessed)
    project.pytest("recipe.py").assert_outcomes(passed=1)
    project.edit()
    changed = project.pytest("recipe.py")
    changed.assert_outcomes(failed=1)
    assert f"opguard bisect --good {project.first} --bad HEAD recipe.py:train" in text_of(changed)
    elsewhere = project.pytest("recipe.py", "--opguard-golden=elsewhere")
    assert "There is no golden for this target." in text_of(elsewhere)
    dirty = project.pytest("recipe.py", "--opguard-bless=again")
    assert dirty.ret == pytest.ExitCode.USAGE_ERROR
    assert "[dirty-tree]" in str(dirty.stderr)
    monkeypatch.setenv("CI", "true")
    in_ci = project.pytest("recipe.py", "--opguard-bless=again")
    assert in_ci.ret == pytest.ExitCode.USAGE_ERROR
    assert "[bless-in-ci]" in str(in_ci.stderr)


def test_printed_command_finds_the_commit(project: Project) -> None:
    """The last line of a report runs as it stands, also for a recipe with parameters, which only pytest can name."""
    project.write(
        recipe=RECIPE.replace("@recipe", "import pytest\n\n@pytest.mark.parametrize('width', [4, 8])\n@recipe")
        .replace("train()", "train(width)")
        .replace("run()", "run(width)")
    )
    good = project.git.commit("parameters")
    project.edit()
    bad = project.git.commit("eps")
    result = project.pytest("recipe.py::train[8]", f"--opguard-reference={good}")
    result.assert_outcomes(failed=1)
    words = shlex.split(line_with(text_of(result), "^opguard bisect"))
    assert words[-1] == "recipe.py::train[8]"
    document = bisected(project, words)
    assert (document["verdict"], document["first_bad"]) == ("found", bad)
    assert document["divergence"]["op"] == "aten.native_layer_norm.default"
