from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.errors import UsageError
from opguard_ci.worker.identity import ServerSpec, chosen_hash_seed, relevant, server_key

ENVIRONMENT = {"PATH": "/bin", "HOME": "/home/me"}


def test_the_key_covers_what_an_import_reads() -> None:
    """Equal callers share a key; profile, instance, seed, entry and any variable of weight change it."""
    key = server_key(ServerSpec("observe"), ENVIRONMENT)
    assert key == server_key(ServerSpec("observe"), dict(ENVIRONMENT))
    others = [
        server_key(ServerSpec("strict"), ENVIRONMENT),
        server_key(ServerSpec("observe", instance=1), ENVIRONMENT),
        server_key(ServerSpec("observe", hash_seed=1), ENVIRONMENT),
        server_key(ServerSpec("observe", entry="a:b"), ENVIRONMENT),
        server_key(ServerSpec("observe"), {**ENVIRONMENT, "LD_PRELOAD": "/lib/x.so"}),
        server_key(ServerSpec("observe"), {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "1"}),
        server_key(ServerSpec("observe"), {**ENVIRONMENT, "PYTHONPATH": "src"}),
    ]
    assert len({key, *others}) == 8


@given(st.sampled_from(["PWD", "TERM", "PYTEST_CURRENT_TEST", "GITHUB_OUTPUT", "OPGUARD_SERVER_IDLE"]), st.text())
def test_the_key_leaves_out_what_no_import_reads(name: str, value: str) -> None:
    """Variables that change from call to call do not cost a server each."""
    assert relevant({**ENVIRONMENT, name: value}) == ENVIRONMENT


def test_what_strict_replaces_does_not_count() -> None:
    """The caller's thread count is no reason for another server where the profile sets its own."""
    with_threads = {**ENVIRONMENT, "OMP_NUM_THREADS": "8"}
    assert server_key(ServerSpec("strict"), with_threads) == server_key(ServerSpec("strict"), ENVIRONMENT)
    assert server_key(ServerSpec("observe"), with_threads) != server_key(ServerSpec("observe"), ENVIRONMENT)


def test_hash_seeds() -> None:
    """The profile's seed, else the caller's, else the one asked for, else a random one that is never 0."""
    assert chosen_hash_seed(ServerSpec("strict"), {"PYTHONHASHSEED": "7"}) == "0"
    assert chosen_hash_seed(ServerSpec("observe", hash_seed=3), {"PYTHONHASHSEED": "7"}) == "7"
    assert chosen_hash_seed(ServerSpec("observe", hash_seed=3), {"PYTHONHASHSEED": "random"}) == "3"
    drawn = {chosen_hash_seed(ServerSpec("observe"), {}) for _ in range(8)}
    assert len(drawn) > 1
    assert "0" not in drawn


def test_a_pinned_seed_cannot_be_replaced() -> None:
    """Asking for another seed under a profile that pins it is refused, not ignored."""
    with pytest.raises(UsageError, match="pins it to 0"):
        chosen_hash_seed(ServerSpec("portable", hash_seed=3), {})
