"""Runs the programs of this folder in several ranks, captured or bare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.trace.model import Event
from opguard_ci.trace.reader import Trace, read_trace
from opguard_ci.worker import client
from opguard_ci.worker.request import RunRequest, RunResult
from opguard_ci.worker.servers import Server

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Ran:
    """A run: its result, what its ranks printed, its trace."""

    result: RunResult
    lines: list[str]
    folder: Path

    @property
    def outcome(self) -> dict[str, Any]:
        return self.result.outcome

    @property
    def trace(self) -> Trace:
        return read_trace(self.folder)

    def events(self, rank: int, *ops: str) -> list[Event]:
        """The events of a rank, of these operators or of all."""
        found = [event for table in self.trace.steps(rank) for event in table.events()]
        return [event for event in found if not ops or event.op.startswith(ops)]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Runs targets of ``programs.py`` in ``where``; traces go to ``folder``."""

    server: Server
    folder: Path
    where: Path = HERE

    def run(self, name: str, *argv: str, **options: Any) -> Ran:
        """Run a target; its traces are numbered."""
        folder = self.folder / f"run-{len(list(self.folder.iterdir()))}"
        options = {"ranks": 2, "timeout": 60.0, "profile": self.server.profile, **options}
        request = RunRequest(f"programs.py:{name}", cwd=str(self.where), output=str(folder), argv=argv, **options)
        printed = self.folder / f"{folder.name}.out"
        with printed.open("wb") as file:
            result = client.run(request, server=self.server, stdout=file.fileno())
        return Ran(result, sorted(printed.read_text().splitlines()), folder)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server.start("strict") as started:
        yield started


@pytest.fixture
def ranks(server: Server, tmp_path: Path) -> Ranks:
    """Captured runs."""
    return Ranks(server, tmp_path)


@pytest.fixture(scope="session")
def bare_server() -> Iterator[Server]:
    with Server.start("strict", entry="tests.ranks.entries:execute_bare") as started:
        yield started


@pytest.fixture
def bare(bare_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """The same without capture."""
    return Ranks(bare_server, tmp_path_factory.mktemp("bare"))
