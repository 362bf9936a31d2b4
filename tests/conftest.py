"""Fixtures for tests that run targets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of their own, and servers that end with this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPGUARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OPGUARD_SERVER_IDLE", "0")
        yield
