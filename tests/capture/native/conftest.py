"""The compiled recorder, built if a compiler is here, and two processes that run programs with and without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from opguard_ci.capture import native
from opguard_ci.capture.native.build import BuildError, build
from tests.capture.running import Runner


@pytest.fixture(scope="session")
def compiled() -> Any:
    """The module."""
    try:
        build()
    except BuildError as reason:
        pytest.skip(str(reason))
    return native.load()[0]


@pytest.fixture(scope="session")
def runners(compiled: Any) -> Iterator[tuple[Runner, Runner]]:
    """One that records with the module, and one that records in Python, under ``observe``."""
    yield from _pair("observe")


@pytest.fixture(scope="session")
def strict_runners(compiled: Any) -> Iterator[tuple[Runner, Runner]]:
    """The same under ``strict``."""
    yield from _pair("strict")


def _pair(profile: str) -> Iterator[tuple[Runner, Runner]]:
    folder = {"OPGUARD_CACHE": str(native.library().parents[2])}
    pair = Runner(profile, **folder), Runner(profile, **folder, OPGUARD_NATIVE="0")
    yield pair
    for runner in pair:
        runner.close()
