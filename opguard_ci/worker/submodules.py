"""What a checkout has of its submodules' commits. Their repositories are read like the checkout's own, and never
written; a commit that none of them holds is not fetched.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_ci.errors import UsageError
from opguard_ci.worker.objects import Entry

if TYPE_CHECKING:
    from opguard_ci.worker.git import Repository

_LINK = b"160000 "


class Submodules:
    """The submodules of a repository, as far as they are cloned in its working tree."""

    def __init__(self, repository: Repository, cache: Path | None) -> None:
        self._repository, self._cache = repository, cache
        self._known: dict[str, tuple[Entry, ...] | None] = {}
        self._owners: dict[str, Repository] = {}
        self._lock = threading.RLock()

    @cached_property
    def clones(self) -> list[Repository]:
        """Their repositories."""
        root = self._repository.root
        if not (root / ".gitmodules").is_file():
            return []
        listed = self._repository.command("ls-files", "--stage", "-z").output.split(b"\0")
        places = [root / os.fsdecode(line.partition(b"\t")[2]) for line in listed if line.startswith(_LINK)]
        found = []
        for place in places:
            if (place / ".git").exists():
                try:
                    found.append(type(self._repository)(place, cache=self._cache))
                except UsageError:  # its repository has gone
                    continue
        return found

    def entries(self, commit: str) -> tuple[Entry, ...] | None:
        """Every leaf of a submodule's commit, of submodules in it too; None if no clone here has it."""
        with self._lock:
            if commit not in self._known:
                self._known[commit] = self._find(commit)
            return self._known[commit]

    def _find(self, commit: str) -> tuple[Entry, ...] | None:
        for clone in self.clones:
            if clone.command("cat-file", "-e", f"{commit}^{{commit}}").status == 0:
                clone.prefetch([commit])
                found = tuple(_leaves(clone, commit))
                self._owners.update((entry.id, clone) for entry in found if entry.kind == "blob")
                return found
        return None

    def owners(self, ids: Iterable[str]) -> dict[str, Repository]:
        """The clones that hold some blobs of commits that were asked for."""
        return {id_: self._owners[id_] for id_ in ids if id_ in self._owners}

    def laid_out(self, entries: Sequence[Entry]) -> list[str]:
        """The submodules' commits among some entries that are here."""
        return [e.id for e in entries if e.kind == "commit" and self.entries(e.id) is not None]

    def close(self) -> None:
        """End the clones' object readers."""
        for clone in self.__dict__.get("clones", ()):
            clone.close()


def _leaves(clone: Repository, commit: str) -> Iterable[Entry]:
    for entry in clone.entries(commit):
        inner = clone.submodules.entries(entry.id) if entry.kind == "commit" else None
        if inner is None:
            yield entry
        else:
            yield from (leaf._replace(path=entry.path + b"/" + leaf.path) for leaf in inner)
