"""Recipes under the options that people run pytest with, and under none of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pytest_opguard.conftest import RECIPE, TEST, Project, line_with, text_of

pytest_plugins = "pytester"

IMPORT = """
import sys, time, pytest, asyncio, unittest
begin = time.process_time()
import pytest_opguard.plugin
seconds = time.process_time() - begin
heavy = [name for name in ("torch", "git", "numpy", "pyarrow", "rich", "opguard_ci.guard") if name in sys.modules]
print(seconds, *heavy)
"""


def test_importing_the_plugin_is_cheap() -> None:
    """Everybody's pytest pays for the plugin: it imports within 50 ms, and neither torch nor git."""
    tried = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        seconds, *heavy = done.stdout.split()
        assert heavy == []
        tried.append(float(seconds))
    assert min(tried) < 0.05


def test_a_project_without_recipes_is_left_alone(project: Project) -> None:
    """Without a recipe nothing is started, said or written, even where a commit is named in the ini file."""
    (project.dir / "pytest.ini").write_text("[pytest]\nopguard_reference = no-such-commit\n")
    project.write(test_plain="def test_plain(): pass\n")
    result = project.pytest()
    result.assert_outcomes(passed=1)
    assert "opguard:" not in text_of(result)


def test_ini_keys(project: Project) -> None:
    """Each option is an ini key too; the command line comes first."""
    (project.dir / "pytest.ini").write_text(
        "[pytest]\nopguard_reference = HEAD\nopguard_strict = true\nopguard_report = reports\n"
    )
    project.edit("        loss.backward()", "        loss * 2\n        loss.backward()")
    project.pytest("recipe.py").assert_outcomes(failed=1)
    assert [file.suffix for file in sorted((project.dir / "reports").iterdir())] == [".json", ".txt"]
    (project.dir / "pytest.ini").write_text("[pytest]\nopguard_missing = perhaps\n")
    wrong = project.pytest("recipe.py")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    assert "opguard_missing in the ini file must be one of fail, reference, skip" in str(wrong.stderr)


def test_xdist(project: Project) -> None:
    """Under xdist verdicts, reports, properties and the summary are those of one session."""
    names = ("other",)
    project.write(
        recipe=RECIPE + "".join(f"\n\n@recipe(steps=2)\ndef {name}():\n    yield from run()\n" for name in names)
    )
    project.git.commit("two")
    project.edit()
    result = project.spawn("recipe.py", "-n", "2", "--opguard-reference=HEAD", "--opguard-report=reports", "-rA")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "opguard: reference HEAD, profile each recipe's own" in result.stdout
    assert line_with(result.stdout, r"^opguard: 2 diverged; reference [0-9a-f]{12} \(measured\); environment \w{16}")
    documents = [json.loads(file.read_text()) for file in (project.dir / "reports").glob("*.json")]
    assert sorted(each["target"] for each in documents) == [f"recipe.py:{name}" for name in sorted((*names, "train"))]
    assert result.stdout.count("opguard bisect --good") == 2


def test_pdb_stops_in_the_recipe(project: Project) -> None:
    """--pdb implies in-process: a recipe that raises stops at the line that raised."""
    project.write(
        recipe=RECIPE.replace("    yield from", "    here = 40 + 2\n    yield next(run())\n    1 / 0\n    yield from")
    )
    result = project.spawn("recipe.py", "--pdb", "--opguard-reference=HEAD", stdin="p 'here is', here\nq\n")
    assert "('here is', 42)" in result.stdout
    assert "ZeroDivisionError" in result.stdout


def test_pdb_stops_at_the_divergence(project: Project) -> None:
    """A test with the fixture, and a recipe, that compute something else stop before the operator that does; pytest's
    own debugger, which would show frames of the plugin, stays away. The first one to read takes all that was typed.
    """
    project.write(test_it=TEST)
    project.git.commit("a test")
    project.edit()
    words = ("test_it.py", "recipe.py", "--pdb", "--opguard-reference=HEAD")
    result = project.spawn(*words, stdin="p width, EPS\nq\n")
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.count("opguard: before aten.native_layer_norm.default (step 0, forward, 1): arguments") == 2
    assert "lib.py(12)run()\n-> loss = model(" in result.stdout
    assert "(Pdb) (8, 0.001)" in result.stdout
    assert result.stdout.count("(Pdb)") == 3 and "2 failed" in result.stdout


def test_in_process(project: Project) -> None:
    """--opguard-in-process runs the recipe in pytest's process, and still compares with a clean run of the commit."""
    project.write(recipe=RECIPE.replace("    yield", "    import os\n    print('ran in', os.getppid())\n    yield", 1))
    project.git.commit("says where it runs")
    project.edit()
    result = project.spawn("recipe.py", "-s", "--opguard-in-process", "--opguard-reference=HEAD")
    assert result.returncode == 1, result.stdout
    assert f"ran in {os.getpid()}" in result.stdout
    assert "eps 1e-05 -> 0.001" in result.stdout


def test_output_of_the_child(project: Project) -> None:
    """What the working tree's recipe prints is captured for a failure, shown under -s; the reference's is not."""
    project.edit("    yield from", "    print('spoken', 'by child')\n    yield from", "recipe.py")
    project.git.commit("speaks")
    shown = project.spawn("recipe.py", "-s", "--opguard-reference=HEAD")
    assert shown.stdout.count("spoken by child") == 1
    quiet = project.pytest("recipe.py", "--opguard-reference=HEAD")
    assert "spoken by child" not in text_of(quiet)


def test_last_failed(project: Project) -> None:
    """--lf runs the recipe that failed, and it alone."""
    project.write(recipe=RECIPE + "\n\n@recipe(steps=2)\ndef narrow():\n    yield from run(4)\n")
    project.git.commit("two")
    project.edit("yield from run()", "yield from run(6)", "recipe.py")
    options = ("-p", "no:hypothesispytest", "recipe.py", "--opguard-reference=HEAD")
    project.pytester.runpytest_inprocess(*options).assert_outcomes(passed=1, failed=1)
    project.pytester.runpytest_inprocess(*options, "--lf").assert_outcomes(failed=1, deselected=1)


def test_nothing_is_left_running(project: Project) -> None:
    """Whatever a recipe starts ends with its run; with OPGUARD_SERVER_IDLE=0 the servers end with the session."""
    start = "    import subprocess\n    subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
    project.edit("    yield from", f"{start}    yield from", "recipe.py")
    project.git.commit("leaves a process")
    result = project.spawn(
        "recipe.py", "--opguard-reference=HEAD", OPGUARD_SERVER_IDLE="0", RUNNER_TEST_OF=str(project.dir)
    )
    assert result.returncode == 0, result.stdout
    assert marked_processes(f"RUNNER_TEST_OF={project.dir}") == []


def marked_processes(variable: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue  # ended meanwhile, or another user's
    return found
