"""Partial clones: which remote promised the missing objects, and fetching them in batches without touching ``.git``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_ci.errors import UsageError

if TYPE_CHECKING:
    from opguard_ci.worker.git import Repository

KEYS = r"^(extensions\.partialclone|remote\..*\.promisor)$"


def promisor(repository: Repository) -> str | None:
    """The remote that a partial clone promises to get objects from; None for a complete clone."""
    for record in repository.command("config", "-z", "--get-regexp", KEYS).output.split(b"\0"):
        key, _, value = os.fsdecode(record).partition("\n")
        if key == "extensions.partialclone":
            return value
        if key.endswith(".promisor") and value.lower() in ("true", "1", "yes", "on"):
            return key.removeprefix("remote.").removesuffix(".promisor")
    return None


def object_store(repository: Repository, store: Path) -> Path:
    """Make ``store`` an object folder with the user's as its alternate: fetches, lazy ones too, then land in it."""
    (store / "info").mkdir(parents=True, exist_ok=True)
    (store / "pack").mkdir(exist_ok=True)
    own = os.environ.get("GIT_OBJECT_DIRECTORY") or repository.common_dir / "objects"
    (store / "info" / "alternates").write_bytes(os.fsencode(own) + b"\n")
    return store


def fetch_missing(repository: Repository, remote: str, commits: Sequence[str]) -> int:
    """Fetch all that the trees of ``commits`` lack; returns how many objects (UsageError: missing-object)."""
    fetched: set[str] = set()
    feed = "\n".join(commits).encode() + b"\n"
    while True:  # more than one round only where trees are missing too: each round sees one level deeper
        listed = repository.command(
            "rev-list", "--objects", "--missing=print", "--no-walk=unsorted", "--stdin", stdin=feed
        )
        if listed.status:
            raise UsageError("missing-object", f"The objects of the range cannot be listed: {listed.reason}.")
        missing = [line[1:].decode() for line in listed.output.splitlines() if line.startswith(b"?")]
        if not missing:
            return len(fetched)
        if fetched.issuperset(missing):
            raise repository.missing_error(missing[0], "the remote did not send it")
        _fetch(repository, remote, missing)
        fetched.update(missing)


def _fetch(repository: Repository, remote: str, ids: Sequence[str]) -> None:
    """What git itself does for a lazy fetch, but for many objects at once."""
    done = repository.command(
        "fetch", remote, "--quiet", "--no-tags", "--no-write-fetch-head", "--recurse-submodules=no",
        "--filter=blob:none", "--stdin", stdin="\n".join(ids).encode() + b"\n",
        config=("-c", "fetch.negotiationAlgorithm=noop", "-c", "fetch.writeCommitGraph=false"),
    )  # fmt: skip
    if done.status:
        raise repository.missing_error(ids[0], f"one of {len(ids)} to fetch: {done.reason.rstrip('.')}")
