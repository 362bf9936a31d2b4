"""Which commit a run belongs to, as far as there is a git checkout around it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from opguard_ci.errors import UsageError


@dataclass(frozen=True, slots=True)
class Checkout:
    """Top of the tree, commit (``<sha>`` or ``<sha>+dirty``) and tree hash; None where there is no git or no commit.

    ``edits``: see ``worker.edits``.
    """

    root: str | None = None
    commit: str | None = None
    tree: str | None = None
    edits: str | None = None


def find_checkout(folder: Path) -> Checkout:
    """The checkout that ``folder`` lies in. A run needs none, so whatever is wrong with git is no error here."""
    from opguard_ci.worker.edits import edits_of, edits_outside
    from opguard_ci.worker.git import Repository

    try:
        repository = Repository(folder)
    except UsageError:
        return Checkout(edits=edits_outside(folder))
    with repository:
        root = str(repository.root)
        try:
            head = repository.head()
            changed = [path for path in repository.dirty() if not _is_in_a_trace(repository.root, path)]
            commit = f"{head}+dirty" if changed else head
            return Checkout(root, commit, repository.tree(head), edits_of(repository, changed))
        except UsageError:
            return Checkout(root)


def _is_in_a_trace(root: Path, path: bytes) -> bool:
    """Whether a changed file is part of a trace: those that earlier runs left in the checkout change no run."""
    return (root / os.fsdecode(path)).with_name("events-0.arrows").exists()
