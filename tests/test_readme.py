"""What README and the pages beside it show is so."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_ci.cli import _parser
from opguard_ci.commands import EXIT_CODES, VERBS
from opguard_ci.demo.history import build
from opguard_ci.guard import Project, compare_runs
from opguard_ci.report.divergence import divergence_block
from opguard_ci.report.layout import plain
from opguard_ci.worker.places import Job
from pytest_opguard.settings import OPTIONS
from tests.gitrepo import GitRepo

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{page}.md" for page in ("first-recipe", "bisect", "determinism")))
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]


def opguard(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opguard_ci", *words], cwd=folder, capture_output=True, text=True, check=False
    )


def commands_of(text: str) -> list[list[str]]:
    """The command lines of opguard in indented and fenced blocks, and in code of a line's own text."""
    indented = re.findall(r"^ *(?:- run: )?(?:\.venv/bin/)?(opguard [a-z].*)$", text, re.MULTILINE)
    inline = [found.replace("\n", " ") for found in re.findall(r"`(?:\.venv/bin/)?(opguard [a-z][^`]*)`", text)]
    return [shlex.split(line.partition(" > ")[0], comments=True) for line in [*indented, *inline]]


def test_own_code_goes_through_the_commands_shown(tmp_path: Path, shared_servers: None) -> None:
    """The recipe repeats itself; a change of its LayerNorm in the last commit is named by check and bisect."""
    repo = GitRepo(tmp_path / "project")
    repo.commit("A recipe", train=CODE)
    repo.git("tag", "v1.0")
    repo.commit("A helper", helper="WIDTH = 16\n")
    repo.commit("Tidy", train=CODE.replace("LayerNorm(16)", "LayerNorm(16, eps=1e-6)"))
    block = README.partition("## Your own code")[2].partition("## Command line")[0]
    commands = [shlex.split(line, comments=True)[1:] for line in re.findall(r"^    (opguard .*)$", block, re.MULTILINE)]
    assert [words[0] for words in commands] == ["replay", "check", "bisect"]
    results = [opguard(words, repo.dir) for words in commands]
    assert [done.returncode for done in results] == [0, 1, 0], [done.stdout + done.stderr for done in results]
    assert all("eps 1e-05 -> 1e-06" in done.stdout for done in results[1:])


def test_demo_shows_what_is_shown(tmp_path: Path, shared_servers: None) -> None:
    """The history of that seed, and where, operator, cause and source line of its change; hashes may be others."""
    (shown,) = re.findall(r"`--seed 0`:\n\n```\n(.*?)```", README, re.DOTALL)
    history = build(tmp_path, 0)
    assert f"A history of {history.num_commits} commits" in shown
    assert f"planted     {history.change.kind} in {history.change.file}, commit " in shown
    with Project(tmp_path) as project:
        job = Job("train.py:train", str(tmp_path))
        commits = (project.repository.resolve(name) for name in (f"{history.planted}~1", history.planted))
        reference, candidate = (project.commits.at(job, commit) for commit in commits)
        document = compare_runs(reference, candidate)
    told = plain(divergence_block(document["first_divergence"])).splitlines()
    place = re.compile(r"  (where|operator|what|source) ")
    assert [line for line in told if place.match(line)] == [line for line in shown.splitlines() if place.match(line)]


@pytest.mark.parametrize("page", PAGES)
def test_the_command_line_takes_every_command_shown(page: str) -> None:
    """Verbs and options are as shown, placeholders standing for themselves."""
    for words in commands_of((ROOT / page).read_text()):
        if len(words) == 2 and words[1] in VERBS:  # the verb alone, in running text
            continue
        own = words[1 : words.index("--")] if "--" in words else words[1:]
        assert _parser().parse_args(own).verb == words[1], words


@pytest.mark.parametrize("page", PAGES)
def test_pytest_has_every_option_shown(page: str) -> None:
    """Of those that begin with ``--opguard-``."""
    shown = set(re.findall(r"--opguard-[a-z-]+", (ROOT / page).read_text()))
    assert shown <= {option.flag for option in OPTIONS}


def test_every_verb_and_verdict_is_in_the_tables() -> None:
    """With the exit code that it has."""
    table = README.partition("## Command line")[2].partition("## CI")[0]
    assert {verb for verb in VERBS if re.search(rf"[|;] .*`{verb}\b", table)} == set(VERBS)
    rows = dict(re.findall(r"^\| ([0-5]) \| (.*?) \|", README.partition("## Exit codes")[2], re.MULTILINE))
    assert list(rows) == list("012345")
    for verdict, code in EXIT_CODES.items():
        assert re.search(rf"\b{verdict}\b", rows[str(code)]), verdict


@pytest.mark.parametrize("page", [*PAGES, "docs/index.md"])
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of a page is a file of this repository."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target
