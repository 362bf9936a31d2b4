from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.command import command, environment, opguard, opguard_json


def test_run(project: Path) -> None:
    """A run that ends well is ``ok``, and its trace is complete."""
    code, document = opguard_json("run", "training.py:train", "-o", "a", cwd=project)
    assert (code, document["verdict"], document["steps"]) == (0, "ok", 3)
    assert document["schema"] == 1 and document["trace"] == "a" and document["target"] == "training.py:train"
    assert document["profile"] == "observe" and document["level"] == "full" and document["findings"] == []
    coverage = document["coverage"]
    assert coverage["operators"] == coverage["hashed"] > 30 and coverage["unseen"] == []
    manifest = json.loads((project / "a" / "manifest.json").read_text())
    assert manifest["complete"] is True and manifest["environment"]["key"] == document["environment"]


def test_text(project: Path) -> None:
    """The text says what was run, where the trace is, and how much was seen."""
    done = opguard("run", "training.py:train", "-o", "a", cwd=project)
    assert done.returncode == 0
    assert "ok: captured\n" in done.stdout and "\n  trace       a\n" in done.stdout and "fingerprinted\n" in done.stdout


def test_arguments_of_a_script(project: Path) -> None:
    """What stands behind ``--`` is the script's, also if it looks like an option of ours."""
    done = opguard("run", "training.py", "-o", "a", "--", "1e-3", "--json", "--", "-o", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "arguments ['1e-3', '--json', '--', '-o']" in done.stdout


def test_steps(project: Path) -> None:
    """``--steps`` ends the run early, and that is a good end."""
    code, document = opguard_json("run", "training.py:train", "-o", "a", "--steps", "2", cwd=project)
    assert (code, document["steps"]) == (0, 2)


def test_contract_level(project: Path) -> None:
    """``--level contract`` records the values at step ends only."""
    code, document = opguard_json("run", "training.py:train", "-o", "a", "--level", "contract", cwd=project)
    assert (code, document["level"], document["steps"]) == (0, "contract", 3)


RECIPE = """\
import time
from opguard_ci import recipe
from training import train

@recipe(steps=2, level="contract", timeout=8)
def tiny():
    yield from train()

@recipe(steps=9, profile="observe")
def promises_more():
    yield from train()

@recipe(steps=1, timeout=1.5)
def slow():
    time.sleep(60)
    yield from train()
"""


def test_recipe_says_how_it_is_run(project: Path) -> None:
    """Level, profile, steps and timeout of ``@recipe`` hold where the command line names none."""
    (project / "recipes.py").write_text(RECIPE)
    code, document = opguard_json("run", "recipes.py:tiny", "-o", "a", cwd=project)
    assert (code, document["level"], document["profile"], document["steps"]) == (0, "contract", "strict", 2)
    code, document = opguard_json("run", "recipes.py:tiny", "-o", "b", "--level", "full", cwd=project)
    assert (code, document["level"]) == (0, "full")
    code, document = opguard_json("run", "recipes.py:promises_more", "-o", "c", cwd=project)
    assert (code, document["error"]["slug"], document["profile"]) == (4, "too-few-steps", "observe")
    code, document = opguard_json("run", "recipes.py:slow", "-o", "d", cwd=project)
    assert (code, document["error"]["slug"]) == (4, "timeout")
    assert "1.5 s" in document["error"]["message"]


def test_in_process(project: Path) -> None:
    """``--in-process`` gives the same numbers without a server, and still one object on standard output."""
    code, document = opguard_json("run", "training.py:train", "-o", "a", "--in-process", cwd=project)
    assert (code, document["verdict"]) == (0, "ok")
    assert opguard_json("run", "training.py:train", "-o", "b", cwd=project)[0] == 0
    assert opguard_json("compare", "a", "b", cwd=project)[1]["verdict"] == "identical"


def test_pdb_stops_where_the_target_raised(project: Path) -> None:
    """The trace is that of the first run; a second one stops among the user's frames."""
    done = opguard("run", "training.py:raises", "-o", "a", "--pdb", cwd=project, stdin="p number\nw\nq\n")
    assert done.returncode == 4, done.stderr
    before, _, report = done.stdout.partition("untestable")
    assert "opguard: training.py:raises raised\nValueError: bad batch\n" in before
    assert '-> raise ValueError("bad batch")\n(Pdb) 1\n' in before
    assert "opguard_ci/" not in before and "target-raised" in report


def test_pdb_stops_at_the_first_finding(project: Path) -> None:
    """An operator that reads what nobody wrote is no error, and stops before it. Ranks are several processes."""
    lines = ("kept = torch.ones(3)", "kept.numpy()[1] = 7", "yield {'loss': kept + 1}")
    (project / "training.py").write_text("\n    ".join(["import torch\ndef train():", *lines]) + "\n")
    done = opguard("run", "training.py:train", "-o", "a", "--pdb", cwd=project, stdin="p kept.sum()\nc\n")
    assert done.returncode == 0, done.stderr
    assert "opguard: before aten.add.Tensor (step 0, forward): overwritten" in done.stdout
    assert "(Pdb) tensor(9.)" in done.stdout
    done = opguard("run", "training.py:train", "-o", "c", "--pdb", "--ranks", "2", cwd=project, stdin="")
    assert (done.returncode, "ranks-in-process" in done.stderr) == (2, True), done.stderr
    assert not (project / "c").exists()


@pytest.mark.parametrize(
    ("target", "slug"),
    [
        ("nowhere.py:train", "target-not-found"),
        ("training.py:no_such_function", "target-not-found"),
        ("no.such.module:train", "target-not-found"),
        ("training.py:", "bad-target"),
        ("training", "bad-target"),
        ("training.py:1x", "bad-target"),
        ("training.py:not_callable", "bad-target"),
        ("", "bad-target"),
    ],
)
def test_targets_that_do_not_exist(target: str, slug: str, project: Path) -> None:
    """A target that is not there is the caller's mistake, and leaves no folder behind."""
    code, document = opguard_json("run", target, "-o", "a", cwd=project)
    assert (code, document["verdict"], document["error"]["slug"]) == (2, "error", slug)
    assert not (project / "a").exists()


@pytest.mark.parametrize("target", ["raises", "nothing", "exits"])
def test_runs_that_fail(target: str, project: Path) -> None:
    """A target that raises, yields nothing or exits with an error is untestable; what ran before stays readable."""
    code, document = opguard_json("run", f"training.py:{target}", "-o", "a", cwd=project)
    assert (code, document["verdict"]) == (4, "untestable")
    assert document["error"]["slug"] and document["error"]["message"]
    assert opguard_json("show", "a", cwd=project)[0] == 0


def test_traceback_is_the_users(project: Path) -> None:
    """The traceback names the user's line and none of ours."""
    done = opguard("run", "training.py:raises", "-o", "a", cwd=project)
    assert done.returncode == 4
    assert 'training.py", line' in done.stdout and "ValueError: bad batch" in done.stdout
    assert "opguard_ci/" not in done.stdout and "opguard_ci/" not in done.stderr


def test_syntax_error_in_the_target(project: Path) -> None:
    """A file that Python cannot compile is untestable, and Python's own message is shown."""
    (project / "broken.py").write_text("def train(:\n")
    done = opguard("run", "broken.py:train", "-o", "a", cwd=project)
    assert done.returncode == 4
    assert "SyntaxError" in done.stdout and 'broken.py", line 1' in done.stdout


def test_a_run_that_recorded_nothing_is_in_nobodys_way(project: Path) -> None:
    """Mended, the target can be run into the same folder; a trace with something in it, or a file beside it, stays."""
    words = ("run", "importing.py:train", "-o", "a")
    (project / "importing.py").write_text("import not_there\n")
    assert opguard_json(*words, cwd=project)[0] == 4
    (project / "importing.py").write_text("from training import train\n")
    (project / "a" / "mine").touch()
    assert opguard_json(*words, cwd=project)[1]["error"]["slug"] == "output-exists"
    (project / "a" / "mine").unlink()
    assert opguard_json(*words, cwd=project)[0] == 0
    assert opguard_json(*words, cwd=project)[1]["error"]["slug"] == "output-exists"


def test_crash(project: Path) -> None:
    """A run that a signal ends says which one."""
    code, document = opguard_json("run", "training.py:crashes", "-o", "a", cwd=project)
    assert (code, document["verdict"]) == (4, "untestable")
    assert "SIGSEGV" in document["error"]["message"]


def test_timeout(project: Path) -> None:
    """A run that takes too long is ended; its steps stay readable."""
    code, document = opguard_json("run", "training.py:endless", "-o", "a", "--timeout", "8", cwd=project)
    assert (code, document["verdict"], document["error"]["slug"]) == (4, "untestable", "timeout")
    assert opguard_json("show", "a", cwd=project)[0] == 0


def test_used_folder(project: Path) -> None:
    """A trace overwrites nothing."""
    (project / "a").mkdir()
    (project / "a" / "notes.txt").write_text("mine")
    code, document = opguard_json("run", "training.py:train", "-o", "a", cwd=project)
    assert (code, document["error"]["slug"]) == (2, "output-exists")
    assert [file.name for file in (project / "a").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("folder", ["training.py", "training.py/below", "/proc/no/such"])
def test_impossible_folder(folder: str, project: Path) -> None:
    """A folder that cannot be made is the caller's mistake."""
    code, document = opguard_json("run", "training.py:train", "-o", folder, cwd=project)
    assert (code, document["verdict"]) == (2, "error")
    assert document["error"]["slug"] in ("output-exists", "output-unwritable")


def test_empty_folder_is_used(project: Path) -> None:
    """An empty folder that is there already takes the trace."""
    (project / "a").mkdir()
    assert opguard_json("run", "training.py:train", "-o", "a", cwd=project)[0] == 0


def test_interrupt(project: Path) -> None:
    """Ctrl-C ends every process of the run, is exit code 130, and names the command that reads the rest."""
    process = subprocess.Popen(
        command("run", "training.py:endless", "-o", "a"),
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background job ignores Ctrl-C, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "step 2\n":
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.splitlines()[-1].endswith("can be read with: opguard show a [interrupted]")
    assert "Traceback" not in err
    code, document = opguard_json("show", "a", cwd=project)
    assert code == 0 and document


def test_pipe_is_not_held_open(project: Path) -> None:
    """A server that outlives the command does not keep the reader of a pipe waiting."""
    start = time.monotonic()
    words = " ".join(command("run", "training.py:train", "-o", "a"))
    done = subprocess.run(["bash", "-c", f"{words} | cat"], cwd=project, env=environment(), timeout=60)
    assert done.returncode == 0 and time.monotonic() - start < 25


def test_a_window_of_no_step_is_refused(project: Path) -> None:
    """Before anything is started."""
    words = ("run", "training.py:train", "-o", "t", "--from-step", "5", "--to-step", "3")
    code, document = opguard_json(*words, cwd=project)
    assert (code, document["error"]["slug"]) == (2, "bad-window")
    assert not (project / "t").exists()
