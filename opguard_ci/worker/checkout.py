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
    from opguard_ci.worker.edits import edits_of, edits_outside, without_reports
    from opguard_ci.worker.git import Repository

    try:
        repository = Repository(folder)
    except UsageError:
        return Checkout(edits=edits_outside(folder))
    with repository:
        root = repository.root
        try:
            head = repository.head()
            changed = without_reports(root, map(os.fsdecode, repository.dirty()))
            commit = f"{head}+dirty" if changed else head
            return Checkout(str(root), commit, repository.tree(head), edits_of(repository, changed))
        except UsageError:
            return Checkout(str(root))
