"""One process that has imported torch serves all tests; each program runs in a fork of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .running import Programs, Runner


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    """Runs targets under the profile ``observe``, with one thread."""
    made = Runner()
    yield made
    made.close()


@pytest.fixture(scope="session")
def python_runner() -> Iterator[Runner]:
    """As ``runner``, but without the compiled recorder."""
    made = Runner(OPGUARD_NATIVE="0")
    yield made
    made.close()


@pytest.fixture(scope="session")
def strict_runner() -> Iterator[Runner]:
    """Runs targets under the profile ``strict``."""
    made = Runner("strict")
    yield made
    made.close()


@pytest.fixture
def programs(runner: Runner, tmp_path: Path) -> Programs:
    """Programs of the test's own folder, under ``observe``."""
    return Programs(runner, tmp_path)


@pytest.fixture
def python_programs(python_runner: Runner, tmp_path: Path) -> Programs:
    """Programs of the test's own folder, under ``observe``, all of whose calls the Python recorder records."""
    return Programs(python_runner, tmp_path)


@pytest.fixture
def strict_programs(strict_runner: Runner, tmp_path: Path) -> Programs:
    """Programs of the test's own folder, under ``strict``."""
    return Programs(strict_runner, tmp_path)
