"""The part of a commit graph that a search looks at: a good commit, a bad one, and what lies between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


@dataclass(frozen=True)
class Graph:
    """Commits that ``bad`` contains and ``good`` does not, with their parents, parents before children.

    ``parents`` lists ``bad`` but not ``good``. A parent that is neither listed nor ``good`` is *outside*: a commit
    that good's history holds too, where a branch began before ``good``.
    """

    good: str
    bad: str
    parents: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if self.good in self.parents or (self.bad not in self.parents and self.bad != self.good):
            raise ValueError("a graph lists the bad commit and not the good one")
        seen: set[str] = set()
        for commit, parents in self.parents.items():
            if any(parent in self.parents and parent not in seen for parent in parents):
                raise ValueError(f"{commit} is listed before one of its parents")
            seen.add(commit)

    @classmethod
    def linear(cls, commits: Sequence[str]) -> Graph:
        """A history without merges: the good commit first, the bad one last."""
        return cls(commits[0], commits[-1], {new: (old,) for old, new in pairwise(commits)})

    @cached_property
    def order(self) -> dict[str, int]:
        """Each listed commit's place, parents before children."""
        return {commit: place for place, commit in enumerate(self.parents)}

    @cached_property
    def from_good(self) -> frozenset[str]:
        """The listed commits that contain ``good``."""
        found = {self.good}
        for commit, parents in self.parents.items():
            if not found.isdisjoint(parents):
                found.add(commit)
        return frozenset(found - {self.good})

    def next_down(self, commit: str) -> str | None:
        """The parent that a walk towards ``good`` takes: the first one that contains it, else the first one."""
        parents = self.parents[commit]
        for parent in parents:
            if parent == self.good or parent in self.from_good:
                return parent
        return parents[0] if parents else None

    def line(self, top: str) -> list[str]:
        """The commits from ``top`` down by `next_down`, and last the one where the walk leaves the listed ones."""
        found: list[str] = []
        commit: str | None = top
        while commit is not None:
            found.append(commit)
            commit = self.next_down(commit) if commit in self.parents else None
        return found

    def ancestors(self, commits: Iterable[str]) -> set[str]:
        """The listed commits among ``commits`` and all that they contain."""
        stack = [commit for commit in commits if commit in self.parents]
        found = set(stack)
        while stack:
            for parent in self.parents[stack.pop()]:
                if parent in self.parents and parent not in found:
                    found.add(parent)
                    stack.append(parent)
        return found
