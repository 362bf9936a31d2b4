"""The compiled recorder, built if a compiler is here, and two runners of programs, with and without it."""

from __future__ import annotations

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
def runners(compiled: Any) -> tuple[Runner, Runner]:
    """One that records with the module, and one that records in Python, under ``observe``."""
    return _pair("observe")


@pytest.fixture(scope="session")
def strict_runners(compiled: Any) -> tuple[Runner, Runner]:
    """The same under ``strict``."""
    return _pair("strict")


def _pair(profile: str) -> tuple[Runner, Runner]:
    folder = {"OPGUARD_CACHE": str(native.library().parents[2])}
    return Runner(profile, **folder), Runner(profile, **folder, OPGUARD_NATIVE="0")
