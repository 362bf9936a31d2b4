"""Servers of their own for the cases, which end with the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPGUARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OPGUARD_SERVER_IDLE", "0")
        yield
