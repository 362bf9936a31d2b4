"""Small projects under git, with one cache folder for all tests here and the surroundings that fork servers go by."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.gitrepo import GitRepo

_HELD = (
    "torch", "torch._dynamo", "torch._inductor.output_code", "git", "opguard_ci.guard", "opguard_ci.bless",
    "opguard_ci.report.text", "opguard_ci.report.crash", "pytest_opguard.recorded", "pytest_opguard.runs",
    "pytest_opguard.node",
)  # fmt: skip
"""A session inside this process gives back the modules that it imported; these cannot be imported twice."""
for name in _HELD:
    importlib.import_module(name)

_GIVEN = {name: os.environ.get(name) for name in ("HOME", "USERPROFILE", "PY_COLORS")}
"""What pytester changes, and differently for each test: no server would fit a second one."""

LIB = """\
import torch
from torch import nn

EPS = 1e-5


def run(width=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width, eps=EPS), nn.Linear(width, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield {"loss": loss, "model": model}
"""
RECIPE = """\
from lib import run
from opguard_ci import recipe


@recipe(steps=2)
def train():
    yield from run()
"""
TEST = """\
from lib import run


def test_steps(opguard):
    values = run()
    for step in opguard.steps(2):
        step.record(**next(values))
"""


class Project:
    """A git repository in pytester's folder with a library, and a first commit."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.dir = pytester.path
        self.git = GitRepo(self.dir)
        self.write(lib=LIB, recipe=RECIPE)
        self.first = self.git.commit("first")

    def write(self, **files: str) -> None:
        for name, text in files.items():
            self.git.put(f"{name.replace('__', '/')}.py", text)

    def edit(self, old: str = "1e-5", new: str = "1e-3", file: str = "lib.py") -> None:
        text = (self.dir / file).read_text()
        assert old in text
        seconds = (self.dir / file).stat().st_mtime + 2  # or Python would not see that what it compiled is old
        (self.dir / file).write_text(text.replace(old, new))
        os.utime(self.dir / file, (seconds, seconds))

    def pytest(self, *arguments: str) -> pytest.RunResult:
        """A session in this process."""
        quick = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")  # which imports hypothesis at each end
        return self.pytester.runpytest_inprocess(*quick, *arguments)

    def spawn(self, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """A session in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], cwd=self.dir, env={**os.environ, **variables},
            input=stdin, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip


@pytest.fixture
def project(pytester: pytest.Pytester, shared_servers: None, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("PYTEST_ADDOPTS", "PYTHONHASHSEED", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in _GIVEN.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    return Project(pytester)


def text_of(result: pytest.RunResult | subprocess.CompletedProcess[str]) -> str:
    """All that a session printed."""
    return str(result.stdout)


def line_with(text: str, pattern: str) -> str:
    """The only line that the pattern is found in."""
    (found,) = [line for line in text.splitlines() if re.search(pattern, line)]
    return found


def bisected(project: Project, words: list[str]) -> dict[str, Any]:
    """What a printed ``opguard bisect`` line gives, as JSON."""
    command = [sys.executable, "-m", "opguard_ci", words[1], "--json", *words[2:]]
    done = subprocess.run(command, cwd=project.dir, capture_output=True, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    return document
