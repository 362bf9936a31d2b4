"""Every change of class along a history: halving between unequal neighbours, then inside the branches merged there."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from opguard_ci.bisect.graph import Graph
from opguard_ci.bisect.probing import choose


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of class between neighbours.

    ``commit`` has class ``to``; ``before``, the nearest testable commit below it, has class ``origin``. ``candidates``
    are ``commit`` and the untestable ones between. ``merge``: the merge that brought it into the line, or None.
    """

    commit: str
    before: str
    origin: Hashable
    to: Hashable
    candidates: tuple[str, ...]
    merge: str | None = None


def explore(
    graph: Graph, known: Mapping[str, Hashable | None], *, exhaustive: bool
) -> tuple[list[str], list[Transition]]:
    """The commits still to be tried, the most telling first, and the changes found so far.

    Between two commits of one class nothing is assumed to happen, unless ``exhaustive``: then every commit is tried.
    """
    walk = _Walk(graph, known, exhaustive)
    found = walk.along(graph.line(graph.bad)[::-1], None)
    found.sort(key=lambda change: graph.order[change.commit])
    walk.wanted.sort(key=lambda size_and_commit: -size_and_commit[0])
    return list(dict.fromkeys(commit for _, commit in walk.wanted)), found


@dataclass(slots=True)
class _Walk:
    graph: Graph
    known: Mapping[str, Hashable | None]
    exhaustive: bool
    wanted: list[tuple[int, str]] = field(default_factory=list)
    visited: set[str] = field(default_factory=set)

    def along(self, line: Sequence[str], merge: str | None) -> list[Transition]:
        """The changes along a line (oldest first), and in the branches that were merged where it changes."""
        self.visited.update(line)
        edges = list(self._edges(line))
        found: list[Transition] = []
        for low, high in edges:
            between = line[low + 1 : high + 1]
            inside = [change for commit in between for change in self._merged(commit, line, merge)]
            found += inside
            before, commit = line[low], line[high]
            is_explained = bool(inside) and not self._adds_to_branches(commit, before)
            if self.known[before] != self.known[commit] and not is_explained:
                change = Transition(
                    commit, before, self.known[before], self.known[commit], tuple(between), merge
                )  # fmt: skip
                found.append(change)
        return found

    def _edges(self, line: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Neighbouring testable places that nothing untried lies between; asks for what else is needed."""
        places = self._testable_ends(line)
        if not places:
            return
        tested = [p for p in range(places[0], places[1] + 1) if self.known.get(line[p]) is not None]
        for low, high in pairwise(tested):
            untried = [line[p] not in self.known for p in range(low + 1, high)]
            is_open = self.exhaustive or self.known[line[low]] != self.known[line[high]]
            if is_open and any(untried):
                place = low + 1 + choose(untried, len(untried))
                self.wanted.append((sum(untried), line[place]))
            elif is_open:
                yield low, high

    def _testable_ends(self, line: Sequence[str]) -> tuple[int, int] | None:
        """The outermost testable places of a line; None while one of them has to be tried."""
        ends = []
        for places in (range(len(line)), range(len(line) - 1, -1, -1)):
            for place in places:
                if line[place] not in self.known:
                    self.wanted.append((len(line), line[place]))
                    break
                if self.known[line[place]] is not None:
                    ends.append(place)
                    break
        return (ends[0], ends[1]) if len(ends) == 2 else None

    def _merged(self, commit: str, line: Sequence[str], merge: str | None) -> list[Transition]:
        """The changes inside of what a merge on the line brought in."""
        found: list[Transition] = []
        for branch in self._branches(commit):
            if branch[-1] not in self.visited and branch[-1] not in line:
                found += self.along(branch, merge or commit)
        return found

    def _branches(self, commit: str) -> Iterator[list[str]]:
        """For each other parent of a merge, its line from where it left the merge's own line, oldest first."""
        main = self.graph.next_down(commit)
        own = self.graph.ancestors([main] if main is not None else [])
        for parent in self.graph.parents[commit]:
            if parent == main or parent in own or parent not in self.graph.parents:
                continue
            line = []
            for passed in self.graph.line(parent):
                line.append(passed)
                if passed in own:
                    break
            yield line[::-1]

    def _adds_to_branches(self, commit: str, before: str) -> bool:
        """Whether a merge differs from what it took in, although its own line had not moved since the branch."""
        return any(
            self.known.get(branch[0]) == self.known[before]
            and self.known.get(branch[-1]) not in (None, self.known[commit])
            for branch in self._branches(commit)
        )
