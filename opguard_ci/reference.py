"""Which reference counts for a target (DESIGN 8): a given commit, a golden, a commit in its place, or none."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from .errors import IncomparableError, UsageError
from .store.golden import Golden, Goldens
from .worker.git import Repository
from .worker.history import merge_base
from .worker.objects import parse_tree

_MAX_COMMITS: Final = 10_000
"""Commits among which one with a golden's tree is looked for."""
_FULL_HASH: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asks for: ``commit``, a revision that decides; ``missing``: what happens without a golden."""

    commit: str | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """What a target is compared with.

    ``kind`` ``none``: nothing; ``missing`` then says whether that fails or is skipped, and ``why`` why it is so.
    ``golden`` of another environment is only there where no commit can be run in its place; ``instead_of`` is one whose
    commit is run.
    """

    kind: Literal["commit", "golden", "none"]
    commit: str | None = None
    golden: Golden | None = None
    why: str = ""
    missing: str = ""
    instead_of: Golden | None = None


def in_ci() -> bool:
    """Whether this is a CI job, as every provider says by setting ``CI``."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


class References:
    """Chooses references for the targets of one repository."""

    def __init__(self, repository: Repository, goldens: Goldens, branch: str, missing: str | None) -> None:
        """``branch`` and ``missing``: the project's settings."""
        self._repository = repository
        self._goldens = goldens
        self._branch = branch
        self._missing = missing

    def choose(self, recipe: str, key: str, wanted: Wanted, *, unusable: str = "") -> Reference:
        """The reference of a recipe in the environment ``key``; ``unusable`` says why its golden does not count.

        Raises ``UsageError`` if the revision names no commit, the golden is damaged, or the clone is too shallow.
        """
        if wanted.commit is not None:
            return Reference("commit", self._repository.resolve(wanted.commit))
        if not unusable:
            try:
                golden = self._goldens.find(recipe, key)
                if golden is not None:
                    return Reference("golden", golden.latest.commit, golden)
            except IncomparableError as error:
                unusable = f"The golden of this environment does not count: {error.message}"
        known = self._goldens.keys(recipe)
        missing = wanted.missing or self._missing or self._default(known)
        if missing == "reference":
            return self._stand_in(recipe, unusable)
        if unusable:
            why = unusable
        elif known:
            others = f"{len(known)} other environment{'s' * (len(known) > 1)}"
            why = f"There is no golden for this environment ({key}), only for {others}."
        else:
            why = "There is no golden for this target."
        return Reference("none", why=why, missing=missing)

    def commit_of(self, golden: Golden) -> str | None:
        """The commit that a golden was recorded at; where that is gone, one with the same tree, or None."""
        if _FULL_HASH.fullmatch(golden.latest.commit):
            with contextlib.suppress(UsageError):
                return self._repository.resolve(golden.latest.commit)
        return self._with_code(golden.latest.code)

    @staticmethod
    def _default(known: Sequence[str]) -> str:
        if not known:
            return "fail"
        return "reference" if in_ci() else "skip"

    def _stand_in(self, recipe: str, unusable: str) -> Reference:
        """The commit of the newest golden, else the merge base, else the newest golden of another environment."""
        newest = next(iter(self._goldens.of(recipe)), None)
        if newest is not None:
            commit = self.commit_of(newest)
            if commit is not None:
                why = f"{unusable} The commit of the newest golden was taken instead.".strip()
                return Reference("commit", commit, why=why, instead_of=newest)
        base = self._merge_base()
        if base is not None:
            why = f"{unusable} The merge base with {self._branch} was taken instead of a golden.".strip()
            return Reference("commit", base, why=why)
        if newest is not None:
            why = "Only a golden of another environment is left, and its commit is gone."
            return Reference("golden", newest.latest.commit, newest, why=why)
        why = f"There is no golden, and no merge base with {self._branch} (reference_branch in [tool.opguard])."
        return Reference("none", why=why, missing="fail")

    def _merge_base(self) -> str | None:
        for name in (self._branch, f"origin/{self._branch}"):
            try:
                branch = self._repository.resolve(name)
            except UsageError as error:
                if error.slug != "unknown-commit":
                    raise
                continue
            return merge_base(self._repository, self._repository.head(), branch)
        return None

    def _with_code(self, code: str) -> str | None:
        """The newest commit whose tree without the goldens has this digest."""
        listed = self._repository.require("rev-list", "--all", f"--max-count={_MAX_COMMITS}", "--")
        golden = self._goldens.folder
        return next(
            (commit for commit in listed.decode().split() if code_digest(self._repository, commit, golden) == code),
            None,
        )


def code_digest(repository: Repository, commit: str, golden: Path) -> str:
    """A digest of a commit's tree without the folder of its goldens: blessing changes nothing about it."""
    place = os.path.relpath(golden, repository.root)
    records = _records(repository, repository.tree(commit), os.fsencode(place).split(b"/"))
    return hashlib.sha256(records).hexdigest()[:40]


def _records(repository: Repository, tree: str, left_out: list[bytes]) -> bytes:
    """The entries of a tree but for one path; folders on the way to it are spelled out."""
    found = b""
    _, data = repository.read(tree)
    for entry in parse_tree(data, 32 if repository.object_format == "sha256" else 20):
        if entry.path != left_out[0]:
            found += b"%o %s %s\0" % (entry.mode, entry.id.encode(), entry.path)
        elif len(left_out) > 1 and entry.kind == "tree" and (inside := _records(repository, entry.id, left_out[1:])):
            found += b"%s{%s}" % (entry.path, inside)
    return found
