"""The fixture in ordinary tests: recorded in process, compared with pytest's run of the same test at the reference."""

from __future__ import annotations

import shlex

import pytest

from tests.pytest_opguard.conftest import TEST, Project, bisected, line_with, text_of

pytest_plugins = "pytester"

CLASS = """\
import pytest
from lib import run


@pytest.fixture
def values():
    return run()


class TestTraining:
    @pytest.mark.parametrize("name", ["a::b", "c d"])
    def test_steps(self, opguard, values, name):
        for step in opguard.steps(2):
            step.record(**next(values), index=step.index)
"""


def test_reference_of_a_test(project: Project) -> None:
    """A test with fixtures and parameters passes against its own run at a commit, and fails when numbers change;
    the printed command finds the commit.
    """
    project.write(test_it=CLASS)
    project.git.commit("a test")
    result = project.pytest("test_it.py", "--opguard-reference=HEAD")
    result.assert_outcomes(passed=2)
    assert line_with(text_of(result), r"^opguard: 2 identical; reference [0-9a-f]{12} \(measured\)")
    project.edit()
    bad = project.git.commit("eps")
    result = project.pytest("test_it.py", "--opguard-reference=HEAD~1", "-k", "c and d")
    result.assert_outcomes(failed=1, deselected=1)
    assert "diverged: step 0, forward, aten.native_layer_norm.default in 1: arguments" in text_of(result)
    words = shlex.split(line_with(text_of(result), "^opguard bisect"))
    assert words[-1] == "test_it.py::TestTraining::test_steps[c d]"
    document = bisected(project, words)
    assert (document["verdict"], document["first_bad"]) == ("found", bad)
    assert document["divergence"]["op"] == "aten.native_layer_norm.default"


def test_without_a_reference(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test has no golden, so that without a commit it is skipped, in CI compared with the merge base."""
    project.write(test_it=TEST)
    commit = project.git.commit("a test")
    project.pytest("test_it.py").assert_outcomes(skipped=1)
    project.pytest("test_it.py", "--opguard-missing=fail").assert_outcomes(failed=1)
    monkeypatch.setenv("CI", "true")
    compared = project.pytest("test_it.py")
    compared.assert_outcomes(passed=1)
    assert commit[:12] in line_with(text_of(compared), "^opguard: 1 identical")


WRONG = {
    "nothing": ("step.record(**next(values))", "pass", "Step 0 recorded nothing"),
    "unnamed": ("step.record(**next(values))", "step.record()", "needs named values"),
    "left": ("step.record(**next(values))", "break", "[steps-not-finished]"),
    "none": ("opguard.steps(2)", "opguard.steps(0)", "needs a whole number from 1"),
    "twice": ("    for step", "    opguard.steps(1)\n    for step", "once in a test"),
    "own": ("    values = run()", "    assert 1 == 2", "assert 1 == 2"),
}


def test_what_is_used_wrongly_fails(project: Project) -> None:
    """A test that records nothing, or not to its end, fails and says what is missing; its own assertions come first."""
    tests = [TEST.replace("test_steps", f"test_{name}").replace(*edit[:2]) for name, edit in WRONG.items()]
    project.write(test_it="\n\n".join(tests))
    result = project.pytest("test_it.py")
    result.assert_outcomes(failed=len(WRONG))
    for name, (_, _, told) in WRONG.items():
        report = text_of(result).partition(f"_ test_{name} _")[2].partition("\n____")[0]
        assert told in report


def test_untestable_reference_is_an_error(project: Project) -> None:
    """A test that fails, or does not exist, at the reference is an error of the setup with the reason."""
    project.write(test_it=TEST.replace("    values = run()", "    values = run()\n    assert 1 == 2"))
    project.git.commit("fails")
    project.write(test_it=TEST + TEST.replace("test_steps", "test_newer"))
    result = project.pytest("test_it.py", "--opguard-reference=HEAD")
    result.assert_outcomes(errors=2)
    assert "test_it.py::test_steps fails: AssertionError [target-raised]" in text_of(result)
    assert "test_it.py::test_newer that uses opguard here. [not-collected]" in text_of(result)
