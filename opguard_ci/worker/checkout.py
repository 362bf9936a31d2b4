"""Which commit a run belongs to, as far as there is a git checkout around it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from opguard_ci.errors import UsageError


@dataclass(frozen=True, slots=True)
class Checkout:
    """Top of the tree, commit (``<sha>`` or ``<sha>+dirty``) and tree hash; None where there is no git or no commit."""

    root: str | None = None
    commit: str | None = None
    tree: str | None = None


def find_checkout(folder: Path) -> Checkout:
    """The checkout that ``folder`` lies in. A run needs none, so whatever is wrong with git is no error here."""
    from opguard_ci.worker.git import Repository

    try:
        repository = Repository(folder)
    except UsageError:
        return Checkout()
    with repository:
        root = str(repository.root)
        try:
            head = repository.head()
            changed = any(not _is_in_a_trace(repository.root, path) for path in repository.dirty())
            return Checkout(root, f"{head}+dirty" if changed else head, repository.tree(head))
        except UsageError:
            return Checkout(root)


def _is_in_a_trace(root: Path, path: bytes) -> bool:
    """Whether a changed file is part of a trace: those that earlier runs left in the checkout change no run."""
    return (root / os.fsdecode(path)).with_name("events-0.arrows").exists()
