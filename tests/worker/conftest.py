"""A cache folder for the tests of a module, and one server per profile for all; servers take seconds to start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.worker import processes
from opguard_ci.worker.client import run
from opguard_ci.worker.request import RunRequest, RunResult
from opguard_ci.worker.servers import Server
from tests.conftest import SERVERS_IDLE, new_cache

ENTRY = "entries:execute"
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # Deeper than the 108 bytes of a socket's address, as a cache folder may be.
    folder = tmp_path_factory.mktemp("cache") / ("deep" * 20) / ("deeper" * 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPGUARD_CACHE", str(new_cache(folder)))
        patch.setenv("OPGUARD_SERVER_IDLE", SERVERS_IDLE)
        patch.setenv("PYTHONPATH", str(HERE))
        patch.delenv("PYTHONHASHSEED", raising=False)
        yield folder


@pytest.fixture(scope="module")
def strict(cache: Path) -> Server:
    return Server.connect("strict", entry=ENTRY)


@pytest.fixture(scope="module")
def observe(cache: Path) -> Server:
    return Server.connect("observe", entry=ENTRY)


def ask(server: Server, target: str, *argv: str, timeout: float = 60) -> RunResult:
    request = RunRequest(
        target,
        cwd=str(HERE),
        output="unused",
        argv=argv,
        profile=server.profile,
        timeout=timeout,  # type: ignore[arg-type]
    )
    return run(request, server=server)


def wait_for(condition: Callable[[], Any], seconds: float = 15) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert value, "waited in vain"
    return value


def alive(pid: int) -> bool:
    found = processes.stat(pid)
    return found is not None and found[1] not in "ZX"


def process_ids(file: Path) -> list[int]:
    """The child, its daemon and its warden, as the target ``stay`` wrote them."""
    wait_for(file.exists)
    return [int(word) for word in file.read_text().split()]
