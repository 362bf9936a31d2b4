"""The search for the first commit of another class, as a pure function of what is known.

A commit's class is any hashable label but None; None means that it cannot be tested. The commit named differs from
the good commit's class, and every parent of it has the good commit's class: all of them were tried, none is assumed.
First parents are followed first; a merge that differs while its first parent does not sends the search into what the
merge brought in; a merge whose parents are all good is to blame itself. Where commits cannot be tested, the answer is
the honest set: those between the last good commits and the first one that differs, which is its last element.

Nothing is remembered but classes: `State.advance` returns another state, so a journal replays into the same search.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from opguard_ci.bisect.graph import Graph
from opguard_ci.bisect.probing import allowance, choose
from opguard_ci.bisect.transitions import Transition, explore

Label = Hashable
Mode = Literal["first", "all", "exhaustive"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a finished search.

    ``verdict``: found, candidates or nothing. ``first_bad`` is None unless found. ``candidates``: when found, that
    commit alone; else all that may be it, parents before children. ``parents``: the tried parents of good's class.
    ``is_evil_merge``: the commit is a merge and all its parents are good. ``inherited``: commits from before the good
    one that differ from it already; a merge among the candidates brought one of their branches, an old difference, in.
    ``unverified``: commits from before the good one that would have to be tried and cannot be tested.
    ``reason``: empty, or why nothing can be named: equal-ends, untestable-good, untestable-bad, inherited.
    ``transitions``: in the modes all and exhaustive, every change found, parents before children.
    """

    verdict: Literal["found", "candidates", "nothing"]
    first_bad: str | None = None
    candidates: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    is_evil_merge: bool = False
    inherited: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    reason: str = ""
    transitions: tuple[Transition, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """A search at one moment: the graph, the mode, and the class of every commit tried so far."""

    graph: Graph
    mode: Mode = "first"
    known: Mapping[str, Label | None] = field(default_factory=dict)

    def advance(self, commit: str, label: Label | None) -> State:
        """The search after ``commit`` turned out to have this class (None: it cannot be tested)."""
        return replace(self, known={**self.known, commit: label})

    @property
    def outcome(self) -> Outcome | None:
        """The answer, None while a probe is needed."""
        probe = self._step()
        return probe if isinstance(probe, Outcome) else None

    def next_probes(self, count: int = 1, pending: Collection[str] = ()) -> list[str]:
        """Up to ``count`` commits worth trying now, the most useful first; none when the search is over.

        ``pending`` are being tried already. What comes after the first assumes each outcome of those before it, good
        ones first: a run that differs ends early, so that what is still pending is likely good.
        """
        found = list(pending)
        labels = (self.known.get(self.graph.good), self.known.get(self.graph.bad))
        ends = list(dict.fromkeys(label for label in labels if label is not None))
        assumed = [self._assuming(pending, label) for label in ends] if pending and ends else [self]
        for state in assumed:
            probe = state._step()
            if isinstance(probe, Outcome):
                continue
            for commit in probe:
                if commit not in found:
                    found.append(commit)
            if len(found) >= count + len(pending) or len(assumed) > 4 * (count + len(pending)):
                break
            assumed.extend(state.advance(probe[0], label) for label in ends)
        return [commit for commit in found if commit not in pending][:count]

    def _assuming(self, commits: Collection[str], label: Label) -> State:
        return replace(self, known={**self.known, **dict.fromkeys(commits, label)})

    def _step(self) -> list[str] | Outcome:
        """The commits to try next, or the answer."""
        graph, known = self.graph, self.known
        ends = [end for end in dict.fromkeys((graph.good, graph.bad)) if end not in known]
        if ends:
            return ends
        for end, reason in ((graph.good, "untestable-good"), (graph.bad, "untestable-bad")):
            if known[end] is None:
                return Outcome("nothing", reason=reason)
        if self.mode != "first":
            return _all_transitions(graph, known, exhaustive=self.mode == "exhaustive")
        if known[graph.good] == known[graph.bad]:
            return Outcome("nothing", reason="equal-ends")
        return _FirstBad(graph, known).step()


def search(state: State) -> Generator[str, Label | None, Outcome]:
    """Drive a search by hand: yields a commit, is sent its class, returns the outcome."""
    while (outcome := state.outcome) is None:
        commit = state.next_probes()[0]
        label = yield commit
        state = state.advance(commit, label)
    return outcome


class _FirstBad:
    """One evaluation of what is known; ``suspect`` is the earliest commit known to differ that still explains bad."""

    def __init__(self, graph: Graph, known: Mapping[str, Label | None]) -> None:
        self.graph = graph
        self.known = known
        self.wanted = known[graph.good]
        self.dropped: set[str] = set()  # commits whose difference is older than the good commit
        self.inherited: dict[str, None] = {}

    def step(self) -> list[str] | Outcome:
        graph, suspect = self.graph, self.graph.bad
        if not graph.from_good:  # good is no ancestor: what good and bad share must be good too
            shared = graph.line(graph.bad)[-1]
            if shared not in graph.parents and shared not in self.known:
                return [shared]
        while True:
            while (earlier := self._earlier(suspect)) is not None:
                suspect = earlier
            region = self._region(suspect)
            old = [parent for parent in self._rim(region) if self._is_outside(parent) and self._differs(parent)]
            if not old:
                break
            self.inherited.update(dict.fromkeys(old))
            self.dropped |= self._carriers(region)
            if graph.bad in self.dropped:
                return Outcome("nothing", inherited=tuple(self.inherited), reason="inherited")
            suspect = graph.bad
        unknown = [parent for parent in self._rim(region) if parent not in self.known]
        return [self._probe(unknown)] if unknown else self._answer(suspect, region)

    def _differs(self, commit: str) -> bool:
        return self.known.get(commit, self.wanted) not in (None, self.wanted)

    def _is_outside(self, commit: str) -> bool:
        return commit not in self.graph.parents and commit != self.graph.good

    def _is_untestable(self, commit: str) -> bool:
        return commit in self.known and self.known[commit] is None

    def _parents(self, commit: str) -> list[str]:
        return [parent for parent in self.graph.parents[commit] if parent not in self.dropped]

    def _earlier(self, suspect: str) -> str | None:
        """A commit known to differ that ``suspect`` contains and that comes before it in the search's order."""
        line = self._line(suspect)
        for commit in reversed(line[1:]):
            if self._differs(commit):
                return commit
        for parent in self._rim(self._region(suspect)):
            if parent in self.graph.parents:
                untried = self._segment(parent, frozenset())
                end = self.graph.next_down(untried[-1]) if untried else parent
                if end is not None and end in self.graph.parents and end not in self.dropped and self._differs(end):
                    return end
        return None

    def _line(self, top: str) -> list[str]:
        """The listed commits from ``top`` towards good, up to the first dropped one."""
        found = []
        for commit in self.graph.line(top):
            if commit not in self.graph.parents or commit in self.dropped:
                break
            found.append(commit)
        return found

    def _region(self, suspect: str) -> list[str]:
        """``suspect`` and the untestable commits right below it: the honest set, newest first."""
        found = [suspect]
        for commit in found:
            for parent in self._parents(commit):
                if parent in self.graph.parents and self._is_untestable(parent) and parent not in found:
                    found.append(parent)
        return found

    def _rim(self, region: list[str]) -> list[str]:
        """The parents below the region, first parents first.

        What is older than the good commit counts only below branches that began there: to a commit that contains the
        good one it brings nothing new.
        """
        found = [
            parent
            for commit in region
            for parent in self._parents(commit)
            if parent not in region and not (self._is_outside(parent) and commit in self.graph.from_good)
        ]
        return list(dict.fromkeys(found))

    def _carriers(self, region: list[str]) -> set[str]:
        """The region and what carries its difference on, up to where history that contains good takes it in."""
        found = set(region) - self.graph.from_good
        for commit, parents in self.graph.parents.items():
            is_good = self.known.get(commit) == self.wanted and commit in self.known
            if commit not in self.graph.from_good and not is_good and not found.isdisjoint(parents):
                found.add(commit)
        return found

    def _probe(self, unknown: list[str]) -> str:
        """What to try of these parents: along the first one's line, unless it is a mere check of what is assumed."""
        settled = self._settled()
        listed = [commit for commit in unknown if commit in self.graph.parents]
        for commit in listed:
            if commit not in settled:
                segment = self._segment(commit, settled)[::-1]
                num_commits = len(self.graph.parents)
                tried = sum(self.known.get(c) is not None for c in self.graph.parents if c != self.graph.bad)
                place = choose([c not in self.known for c in segment], allowance(num_commits) - tried)
                return segment[place]
        return (listed or unknown)[0]

    def _segment(self, top: str, settled: Collection[str]) -> list[str]:
        """The line from ``top`` down of commits without a known class that are not below a good one."""
        found = []
        for commit in self._line(top):
            if commit in settled or self.known.get(commit) is not None:
                break
            found.append(commit)
        return found

    def _settled(self) -> set[str]:
        """All that known good commits contain, as long as nothing that differs is among it: likely good."""
        tainted: set[str] = set()
        for commit, parents in self.graph.parents.items():
            if commit not in self.dropped and (self._differs(commit) or not tainted.isdisjoint(parents)):
                tainted.add(commit)
        trusted = (c for c, label in self.known.items() if label == self.wanted and c not in tainted)
        return self.graph.ancestors(trusted)

    def _answer(self, suspect: str, region: list[str]) -> Outcome:
        rim = self._rim(region)
        unverified = tuple(parent for parent in rim if self._is_untestable(parent))
        candidates = tuple(sorted(region, key=self.graph.order.__getitem__))
        good_parents = tuple(parent for parent in rim if parent not in unverified)
        brought = any(parent in self.dropped for commit in region for parent in self.graph.parents[commit])
        is_found = len(region) == 1 and not unverified
        return Outcome(
            verdict="found" if is_found else "candidates",
            first_bad=suspect if is_found else None,
            candidates=candidates,
            parents=good_parents,
            is_evil_merge=is_found and len(good_parents) > 1 and not brought,
            inherited=tuple(self.inherited) if brought else (),
            unverified=unverified,
        )


def _all_transitions(graph: Graph, known: Mapping[str, Label | None], *, exhaustive: bool) -> list[str] | Outcome:
    """The answer of the modes that look for every change along the first-parent line and in merged branches."""
    wanted, transitions = explore(graph, known, exhaustive=exhaustive)
    if wanted:
        return wanted
    for change in transitions:
        if change.to != known[graph.good]:
            is_found = len(change.candidates) == 1
            parents = graph.parents[change.commit]
            return Outcome(
                verdict="found" if is_found else "candidates",
                first_bad=change.commit if is_found else None,
                candidates=change.candidates,
                parents=(change.before,),
                is_evil_merge=is_found and len(parents) > 1 and all(known.get(p) == change.origin for p in parents),
                transitions=tuple(transitions),
            )
    return Outcome("nothing", reason="equal-ends", transitions=tuple(transitions))
