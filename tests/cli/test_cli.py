from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_ci import cli
from opguard_ci.commands import VERBS, Result
from opguard_ci.errors import UntestableError
from tests.cli.command import ROOT, command, environment, opguard, opguard_json

HEAVY = ("torch", "numpy", "pyarrow", "git", "rich", "xxhash")


def loaded_by(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_names_every_verb(tmp_path: Path) -> None:
    """``opguard --help`` lists the verbs and the exit codes."""
    done = opguard("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert all(f"\n    {verb}" in done.stdout for verb in VERBS)
    assert "exit codes:" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    """The help costs no import of torch, pyarrow, git or rich."""
    code = "from opguard_ci.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert loaded_by(code).isdisjoint(HEAVY)


def test_version(tmp_path: Path) -> None:
    """``--version`` says which version is installed."""
    done = opguard("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout.split()[0]) == (0, "opguard_ci")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["no-such-verb"],
        ["run"],
        ["run", "t.py"],
        ["run", "t.py", "-o", "d", "--no-such-option"],
        ["run", "t.py", "-o", "d", "--level", "half"],
        ["run", "t.py", "-o", "d", "--steps", "0"],
        ["run", "t.py", "-o", "d", "--steps", "many"],
        ["run", "t.py", "-o", "d", "--timeout", "nan"],
        ["run", "t.py", "-o", "d", "--allow"],
        ["replay", "t.py", "-n", "1"],
        ["compare", "a"],
        ["compare", "a", "b", "c"],
        ["compare", "a", "b", "--", "c"],
    ],
)
def test_usage_errors(words: list[str], tmp_path: Path) -> None:
    """A wrong command line is one sentence on standard error, one object under ``--json``, and exit code 2."""
    split = words.index("--") if "--" in words else len(words)
    done = opguard(*words[:split], "--json", *words[split:], cwd=tmp_path)
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert (document["schema"], document["verdict"], document["error"]["slug"]) == (1, "error", "usage")
    assert done.stderr == f"opguard: {document['error']['message']} [usage]\n"


def test_slip_in_an_option(tmp_path: Path) -> None:
    """What was meant is named, and the verb's own help."""
    done = opguard("run", "train.py", "-o", "trace", "--stesp", "3", cwd=tmp_path)
    assert done.returncode == 2
    assert "--stesp 3 (did you mean --steps?); see: opguard run --help [usage]" in done.stderr


def test_usage_error_as_text(tmp_path: Path) -> None:
    """Without ``--json`` standard output stays empty."""
    done = opguard("compare", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("see: opguard compare --help [usage]\n")


def test_json_after_two_dashes_is_the_targets(tmp_path: Path) -> None:
    """A ``--json`` behind ``--`` belongs to the target."""
    done = opguard("compare", "a", "b", "--", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def verb_that(monkeypatch: pytest.MonkeyPatch, action: object) -> None:
    from opguard_ci.commands import compare

    monkeypatch.setattr(compare, "run", action)


NOISY = """
import subprocess, sys
from opguard_ci import cli
from opguard_ci.commands import Result, compare
from opguard_ci.report.layout import Line

def noisy(args):
    print("printed")
    subprocess.run(["echo", "from a child"], check=True)
    return Result({"schema": 1, "verdict": "identical"}, (Line("text"),), 0)

compare.run = noisy
sys.exit(cli.main(["compare", "a", "b", *sys.argv[1:]]))
"""


def test_json_is_alone_on_standard_output() -> None:
    """Whatever a verb, a library or a child prints goes to standard error under ``--json``."""
    done = subprocess.run([sys.executable, "-c", NOISY, "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"schema": 1, "verdict": "identical"}
    assert sorted(done.stderr.splitlines()) == ["from a child", "printed", "text"]


def test_text_is_on_standard_output() -> None:
    """Without ``--json`` the report is what the verb prints."""
    done = subprocess.run([sys.executable, "-c", NOISY], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["from a child", "printed", "text"]


def test_internal_error(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A defect of ours is exit code 5, one sentence without a traceback, and a file that holds it."""

    def broken(args: object) -> Result:
        raise ZeroDivisionError("of ours")

    verb_that(monkeypatch, broken)
    monkeypatch.setenv("OPGUARD_CACHE", str(tmp_path))
    assert cli.main(["compare", "a", "b", "--json"]) == 5
    out, err = capfd.readouterr()
    error = json.loads(out)["error"]
    assert error["slug"] == "internal" and err.count("\n") == 1
    (file,) = tmp_path.rglob("crash-*.txt")
    assert str(file) in error["message"]
    assert "ZeroDivisionError: of ours" in file.read_text() and "torch: " in file.read_text()


def test_untestable_error_shows_the_users_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The user's own frames are shown before the sentence, and are in the object."""

    def untestable(args: object) -> Result:
        raise UntestableError("target-raised", "train.py raised ValueError", "ValueError: bad batch")

    verb_that(monkeypatch, untestable)
    assert cli.main(["compare", "a", "b", "--json"]) == 4
    out, err = capfd.readouterr()
    assert json.loads(out)["error"]["traceback"] == "ValueError: bad batch"
    assert err == "ValueError: bad batch\nopguard: train.py raised ValueError [target-raised]\n"


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C is one sentence and exit code 130."""

    def interrupted(args: object) -> Result:
        raise KeyboardInterrupt

    verb_that(monkeypatch, interrupted)
    assert cli.main(["compare", "a", "b"]) == 130
    assert capfd.readouterr().err == "opguard: interrupted [interrupted]\n"


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "<&-", "| true"])
@pytest.mark.parametrize("json_option", ["", "--json"])
def test_closed_streams(redirection: str, json_option: str, tmp_path: Path) -> None:
    """A closed or broken stream costs nothing but the text: same exit code, no traceback."""
    words = " ".join(command("compare", "a", "b", json_option))
    shell = f"{words} {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_colour_only_on_a_terminal(tmp_path: Path) -> None:
    """Text in a pipe has no escape sequence."""
    assert "\x1b" not in opguard("compare", "a", "b", cwd=tmp_path).stderr


def test_module_and_scripts_are_one() -> None:
    """``python -m opguard_ci``, ``opguard`` and ``opguard-ci`` are the same function."""
    text = (ROOT / "pyproject.toml").read_text()
    assert 'opguard = "opguard_ci.cli:main"' in text and 'opguard-ci = "opguard_ci.cli:main"' in text


def test_missing_trace(tmp_path: Path) -> None:
    """A trace that is not there is named."""
    code, document = opguard_json("compare", "a", "b", cwd=tmp_path)
    assert (code, document["error"]["slug"]) == (2, "trace-not-found")
