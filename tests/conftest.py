"""Fixtures for tests that run targets, and the fork servers that they share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from opguard_ci.worker.cache import cache_folder

_COMPILED = cache_folder() / "native"
_SERVERS = "PYTEST_OPGUARD_SERVERS"
"""The variable that names the folder of the servers. They are found by their environment, but not by ``PYTEST_…``."""
SERVERS_IDLE = "120"
"""Seconds without a run after which a server ends, if the tests do not end it: longer than any test goes without."""


def pytest_configure(config: pytest.Config) -> None:
    """One folder for this run of pytest and its workers, whose servers end when it goes; no variable of git is set."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="opguard-servers-", ignore_cleanup_errors=True)
        os.environ[_SERVERS] = folder.name
        config.add_cleanup(folder.cleanup)


def new_cache(folder: Path) -> Path:
    """A new cache folder: the fork servers of all tests are in it, and the compiled recorder if it has been built."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "native").symlink_to(_COMPILED)
    (folder / "servers").symlink_to(os.environ[_SERVERS])
    return folder


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPGUARD_CACHE", str(new_cache(tmp_path_factory.mktemp("cache"))))
        patch.setenv("OPGUARD_SERVER_IDLE", SERVERS_IDLE)
        yield


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for all tests that call programs."""
    return new_cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def shared_servers(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a test calls use that folder, outside of any CI job."""
    monkeypatch.setenv("OPGUARD_CACHE", str(cache))
    monkeypatch.setenv("OPGUARD_SERVER_IDLE", SERVERS_IDLE)
    for name in ("CI", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", autouse=True)
def settings_of_torch() -> Iterator[None]:
    """A module leaves torch's settings as they were: what runs later is held against fresh processes."""
    import torch  # noqa: F401  (loaded before as after)

    from opguard_ci.determinism import profile

    before = profile.effective()
    yield
    assert profile.effective() == before
