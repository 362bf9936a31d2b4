"""One process of each profile that has imported torch serves all tests; each program runs in a fork of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import Programs, Runner


@pytest.fixture(scope="session")
def runner() -> Runner:
    """Runs targets under the profile ``observe``, with one thread."""
    return Runner()


@pytest.fixture(scope="session")
def python_runner() -> Runner:
    """As ``runner``, but without the compiled recorder."""
    return Runner(OPGUARD_NATIVE="0")


@pytest.fixture(scope="session")
def strict_runner() -> Runner:
    """Runs targets under the profile ``strict``."""
    return Runner("strict")


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
