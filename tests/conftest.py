"""Fixtures for tests that run targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opguard_ci.worker.cache import cache_folder

_COMPILED = cache_folder() / "native"


def with_the_compiled_recorder(cache: Path) -> Path:
    """A new cache folder in which programs find the compiled recorder, if this machine has built it."""
    cache.mkdir(exist_ok=True)
    (cache / "native").symlink_to(_COMPILED)
    return cache


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of their own, and servers that end with this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPGUARD_CACHE", str(with_the_compiled_recorder(tmp_path_factory.mktemp("cache"))))
        patch.setenv("OPGUARD_SERVER_IDLE", "0")
        yield


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for all tests that call programs, so that these share fork servers."""
    return with_the_compiled_recorder(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def shared_servers(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a test calls use that folder, outside of any CI job; its servers end soon after the last run."""
    monkeypatch.setenv("OPGUARD_CACHE", str(cache))
    monkeypatch.setenv("OPGUARD_SERVER_IDLE", "30")
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
