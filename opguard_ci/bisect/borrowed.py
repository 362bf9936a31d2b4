"""Commits that lack the target's file and so ran the working tree's: whether that alone makes neighbours differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from opguard_ci.bisect.search import Outcome, State
from opguard_ci.errors import UntestableError
from opguard_ci.worker.layout import FILE, Changes, Item, blob_id
from opguard_ci.worker.places import Job, Places

Label = Callable[[str, Changes], str | None]
"""The class of a commit that is changed in some places."""


class Borrowed:
    """Knows which commits borrow the target's file from the working tree."""

    def __init__(self, places: Places, job: Job) -> None:
        self._places, self._job = places, job

    def path(self, commit: str) -> str | None:
        """The file's path below the root, if a commit lacks it."""
        return self._places.borrowed(self._job, commit)

    def explains(self, state: State, outcome: Outcome, label: Label) -> bool:
        """Whether a change that was found may be no more than that of the file, between a commit that has its own and
        one that borrows it: given the same file, the one computes what the other does, or cannot be run.
        """
        pairs = [(t.commit, t.before) for t in outcome.transitions if t.before is not None]
        if not pairs and outcome.first_bad is not None and outcome.parents:
            pairs = [(outcome.first_bad, outcome.parents[0])]
        return any(self._explains(state, *pair, label) for pair in pairs)

    def _explains(self, state: State, commit: str, parent: str, label: Label) -> bool:
        places = self.path(commit), self.path(parent)
        if (places[0] is None) == (places[1] is None):
            return False
        owner, borrower = (commit, parent) if places[0] is None else (parent, commit)
        root, place = self._places.repository.root, places[0] or places[1] or ""
        data = (root / place).read_bytes()
        item = Item(FILE, blob_id(data, self._places.repository.object_format), data)
        return label(owner, {os.fsencode(place): item}) in (None, state.known[borrower])

    def among(self, commits: Iterable[str]) -> dict[str, str]:
        """Those of some commits that borrow the file, each with the reason why it proves nothing."""
        found = {}
        for commit in commits:
            path = self.path(commit)
            if path is not None:
                text = (
                    f"{path} is not in this commit, and the working tree's gives other numbers than its neighbours' own"
                )
                error = UntestableError("target-borrowed", text)
                found[commit] = f"{error.slug}: {error.message}"
        return found

    def require_own(self, name: str, commit: str) -> None:
        """Raise ``UntestableError`` ``untestable-good`` or ``untestable-bad`` if an end of the search borrows it."""
        path = self.path(commit)
        if path is not None:
            raise UntestableError(
                f"untestable-{name}",
                f"{path} is not in the {name} end {commit[:12]}, and the working tree's, which was laid over it, gives "
                f"other numbers than the file that other commits have. Name a {name} end that has the file, or run the "
                f"working tree's everywhere: --pin {path}.",
            )
