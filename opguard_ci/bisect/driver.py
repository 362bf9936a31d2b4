"""Finds the commit that changed the numbers: verifies the ends, searches by contract, explains with events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Literal

from opguard_ci.bisect.borrowed import Borrowed
from opguard_ci.bisect.classes import Classes, write_expected
from opguard_ci.bisect.graph import Graph
from opguard_ci.bisect.journal import Journal, Probe, Search, git_bisect_log, place_of, read_journal
from opguard_ci.bisect.narrow import narrow
from opguard_ci.bisect.search import Outcome, State
from opguard_ci.errors import UntestableError, UsageError
from opguard_ci.evidence.rerun import again_at, zoom_sides
from opguard_ci.evidence.zoom import Side
from opguard_ci.guard import Project, at_level_of_run, compare_runs, run_path
from opguard_ci.store.recipes import recipe_id
from opguard_ci.trace.reader import read_trace
from opguard_ci.worker.commits import Commits, Run
from opguard_ci.worker.history import commits_between, is_ancestor, merge_base
from opguard_ci.worker.layout import Changes
from opguard_ci.worker.pieces import Pieces
from opguard_ci.worker.places import Job
from opguard_ci.worker.scratch import Scratch

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BisectOptions:
    """How to search.

    ``mode``: ``first``, ``all`` or ``exhaustive`` transitions. ``jobs``: probes at a time. ``resume``: go on where an
    interrupted search of the same ends stopped. ``hunks``: go on to the pieces of the commit that change the numbers.
    ``progress`` is told each probe as a sentence. ``repro``: a folder that takes a reproducer of the divergence.
    """

    mode: Literal["first", "all", "exhaustive"] = "first"
    jobs: int = 1
    resume: bool = False
    hunks: bool = False
    progress: Progress = lambda _: None
    repro: str | None = None


def bisect(project: Project, job: Job, good: str, bad: str, options: BisectOptions) -> dict[str, Any]:
    """Search the history between two revisions; returns the object of DESIGN 11.

    Raises:
        UsageError: An end is no commit, the ends are swapped or unrelated, the clone is too shallow.
        UntestableError: An end cannot be run, or does not repeat itself.

    """
    return _Bisection(project, job, good, bad, options).run()


def replay(project: Project, journal: Path) -> dict[str, Any]:
    """What a journal alone tells: the same object, without a run and so without the operator.

    Raises ``UsageError`` if the journal does not exist or is damaged, or its commits are not in this repository.
    """
    search, probes = read_journal(journal)
    job = Job(search.target, str(project.root))
    mode: Any = search.mode
    bisection = _Bisection(project, job, search.good, search.bad, BisectOptions(mode))
    return bisection.from_journal(probes)


class _Bisection:
    def __init__(self, project: Project, job: Job, good: str, bad: str, options: BisectOptions) -> None:
        self._project = project
        self._contract = replace(job, level="contract", from_step=None, to_step=None)
        self._events = replace(job, level="auto" if job.level == "contract" else job.level)
        self._options = options
        repository = project.repository
        self._good, self._bad = repository.resolve(good), repository.resolve(bad)
        self._check_ends(good, bad)
        self._commits = commits_between(repository, self._good, self._bad)
        self._graph = Graph(self._good, self._bad, {commit.hash: commit.parents for commit in self._commits})
        self._classes = Classes(self._with_events)
        self._borrowed = Borrowed(project.commits.places, self._contract)
        self._runs: dict[str, Run] = {}
        self._reasons: dict[str, str] = {}
        self._num_runs = self._num_cached = 0
        self._workers: SimpleQueue[Commits] = SimpleQueue()  # those that are idle, of as many as may run at a time
        self._workers.put(project.commits)
        self._lock = Lock()
        self._notes: list[str] = []

    def _check_ends(self, good: str, bad: str) -> None:
        repository = self._project.repository
        if self._good == self._bad:
            return
        if is_ancestor(repository, self._bad, self._good):
            raise UsageError("ends-swapped", f"{bad} is older than {good}; did you mean --good {bad} --bad {good}?")
        if merge_base(repository, self._good, self._bad) is None:
            raise UsageError("unrelated-ends", f"{good} and {bad} have no common history; name two related commits.")

    def run(self) -> dict[str, Any]:
        if self._good == self._bad:
            self._notes.append("Both ends are the same commit, so nothing can have changed between them.")
            return self._document(State(self._graph), Outcome("nothing", reason="equal-ends"))
        with (
            Scratch() as scratch,
            self._journal() as journal,
            self._several_at_a_time() as pool,
        ):
            state = State(self._graph, self._options.mode)
            expected = self._verify_ends(Path(scratch), pool)
            done = {probe.commit for probe in journal.probes}
            for commit in (self._good, self._bad):
                if commit not in done:
                    journal.add(Probe(commit, self._classes.label(self._runs[commit])))
                state = state.advance(commit, self._classes.label(self._runs[commit]))
            for probe in journal.probes:
                if probe.commit not in (self._good, self._bad):
                    state = self._take(state, probe)
            state = self._search(state, journal, expected, pool)
            outcome = state.outcome
            assert outcome is not None
            if self._borrowed.explains(state, outcome, partial(self._label_changed, expected)):
                state = self._search(self._without_borrowers(state, journal), journal, expected, pool)
                outcome = state.outcome
                assert outcome is not None
            document = self._document(state, outcome, pool)
            if self._options.hunks and outcome.first_bad is not None and outcome.parents:
                self._add_hunks(document, outcome.parents[0], journal.path.with_suffix(".patch"))
            self._write_log(journal.path, state, outcome)
            document["journal"] = str(journal.path)
        return document

    def from_journal(self, probes: list[Probe]) -> dict[str, Any]:
        state = State(self._graph, self._options.mode)
        for probe in probes:
            state = self._take(state, probe)
        outcome = state.outcome
        if outcome is None:
            missing = ", ".join(commit[:12] for commit in state.next_probes())
            raise UsageError(
                "journal-unfinished", f"The search stopped before it ended: {missing} is not tried; --resume goes on."
            )
        return self._document(state, outcome)

    # Runs

    @contextmanager
    def _several_at_a_time(self) -> Iterator[ThreadPoolExecutor]:
        """Threads for ``jobs`` runs at a time, and a worker of their own for each but the first."""
        more = [Commits(self._project.repository, self._project.config) for _ in range(self._options.jobs - 1)]
        for worker in more:
            self._workers.put(worker)
        try:
            with ThreadPoolExecutor(self._options.jobs) as pool:
                yield pool
        finally:
            for worker in more:
                worker.close()

    def _run(
        self, job: Job, commit: str, expected: Path | None = None, instance: int = 0, changes: Changes | None = None
    ) -> Run:
        """The run of a commit by a worker that is idle, counted."""
        worker = self._workers.get()
        try:
            run = worker.at(job, commit, expected=expected, instance=instance, changes=changes)
        finally:
            self._workers.put(worker)
        with self._lock:
            self._num_runs += not run.cached
            self._num_cached += run.cached
        return run

    def _with_events(self, run: Run) -> Run:
        return self._run(self._events, str(run.commit), changes=run.changes)

    # The ends

    def _verify_ends(self, scratch: Path, pool: ThreadPoolExecutor) -> Path | None:
        """Run both ends on two servers; a file with the good end's digests, at which probes that differ may stop."""
        expected: Path | None = None
        for name, commit in (("good", self._good), ("bad", self._bad)):
            self._options.progress(f"{name} end {commit[:12]}, on two servers")
            both = list(pool.map(partial(self._run, self._contract, commit, expected), (0, 1)))
            for run in both:
                if not run.testable:
                    raise UntestableError(
                        f"untestable-{name}",
                        f"The {name} end {commit[:12]} cannot be run: {run.reason}",
                        str(run.result.outcome.get("traceback", "")),
                    )
            self._runs[commit] = both[0]
            if self._classes.label(both[0]) != self._classes.label(both[1]):
                raise UntestableError(
                    "unstable-end",
                    f"The {name} end {commit[:12]} does not repeat itself from one process to the next, so commits "
                    f"cannot be told apart; `opguard replay {self._contract.target}` names the operator.",
                )
            if name == "good" and self._options.mode == "first":
                expected = write_expected(both[0].trace, scratch / "expected.json")
        return expected

    # The search

    def _search(self, state: State, journal: Journal, expected: Path | None, pool: ThreadPoolExecutor) -> State:
        pending: dict[Future[Run], str] = {}
        while state.outcome is None:
            wanted = state.next_probes(self._options.jobs - len(pending), list(pending.values()))
            for commit in wanted:
                self._options.progress(self._position(state, commit))
                pending[pool.submit(self._run, self._contract, commit, expected)] = commit
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                commit, run = pending.pop(future), future.result()
                self._runs[commit] = run
                label = self._classes.label(run)
                reason = "" if label is not None else run.reason
                found = Probe(commit, label, reason, round(run.result.seconds, 3), run.cached)
                journal.add(found)
                state = self._take(state, found)
        return state

    def _label_changed(self, expected: Path | None, commit: str, changes: Changes) -> str | None:
        return self._classes.label(self._run(self._contract, commit, expected, changes=changes))

    def _without_borrowers(self, state: State, journal: Journal) -> State:
        """The search without the commits that ran the working tree's copy of the target's file."""
        for name, commit in (("good", self._good), ("bad", self._bad)):
            self._borrowed.require_own(name, commit)
        for commit, reason in self._borrowed.among(self._graph.parents).items():
            found = Probe(commit, None, reason)
            journal.add(found)
            state = self._take(state, found)
        return state

    def _take(self, state: State, probe: Probe) -> State:
        if probe.label is None:
            self._reasons[probe.commit] = probe.reason
        return state.advance(probe.commit, probe.label)

    def _position(self, state: State, commit: str) -> str:
        left = sum(1 for each in self._graph.parents if each not in state.known)
        return f"probing {commit[:12]}, {left} of {len(self._graph.parents)} commits not tried"

    # The answer

    def _what_else(self) -> str:
        """What may be said and done about a change that was taken back between equal ends."""
        if len(self._graph.parents) == 1:
            return ", and there is no commit between them."
        if self._options.mode == "exhaustive":
            return ", and so does every commit between them that could be tested."
        return "; --exhaustive looks for a change that was taken back."

    def _document(self, state: State, outcome: Outcome, pool: ThreadPoolExecutor | None = None) -> dict[str, Any]:
        explained: dict[str, Any] = {}
        if pool is not None and outcome.first_bad is not None and outcome.parents:
            self._options.progress(f"explaining {outcome.first_bad[:12]}")
            explained = self._explain(outcome.first_bad, outcome.parents[0], pool)
        declared = self._declared()
        transitions = [
            {"commit": t.commit, "from": t.origin, "to": t.to, "declared": t.commit in declared, "before": t.before,
             "candidates": list(t.candidates)}
            for t in outcome.transitions
        ]  # fmt: skip
        if not transitions and outcome.first_bad is not None:
            commit = outcome.first_bad
            transitions = [
                {"commit": commit, "from": state.known[self._good], "to": state.known.get(commit),
                 "declared": commit in declared, "before": outcome.parents[0] if outcome.parents else None,
                 "candidates": [commit]}
            ]  # fmt: skip
        if outcome.is_evil_merge:
            self._notes.append("The commit is a merge whose parents are both good: the change was made in merging.")
        if outcome.reason == "equal-ends" and self._good != self._bad:
            self._notes.append("Both ends compute the same" + self._what_else())
            self._notes += self._said_of_ends()
        if outcome.inherited:
            named = ", ".join(commit[:12] for commit in outcome.inherited)
            self._notes.append(f"A merged branch began before the good commit, where {named} differs already.")
        return {
            **explained,
            "schema": 1,
            "verdict": outcome.verdict,
            "target": self._contract.target,
            "good": self._good,
            "bad": self._bad,
            "first_bad": outcome.first_bad,
            "candidates": [] if outcome.verdict == "nothing" else list(outcome.candidates),
            "transitions": transitions,
            "skipped": [{"commit": commit, "reason": self._reasons[commit]} for commit in self._graph.parents
                        if commit in self._reasons],
            "runs": self._num_runs,
            "cached": self._num_cached,
            "hunks": [],
            "divergence": explained.get("first_divergence"),
            "subjects": self._subjects([*outcome.candidates, *(str(t["commit"]) for t in transitions)]),
            "notes": [*self._notes, *explained.get("notes", ())],
            **{name: explained[name] for name in ("reproducer",) if name in explained},
        }  # fmt: skip

    def _said_of_ends(self) -> list[str]:
        """What the runs of the ends noted: something that a tree lacks, or that was lent to it."""
        ends = (("good", self._good), ("bad", self._bad))
        runs = [(name, self._runs[commit]) for name, commit in ends if commit in self._runs]
        return [f"{name} end: {note}" for name, run in runs for note in run.result.outcome.get("notes", ())]

    def _explain(self, culprit: str, parent: str, pool: ThreadPoolExecutor) -> dict[str, Any]:
        """The culprit against its own parent, with every operator recorded."""
        reference, candidate = pool.map(partial(self._run, self._events), (parent, culprit))
        events = at_level_of_run(self._events, reference)
        if at_level_of_run(self._events, candidate) != events:
            candidate = self._run(events, culprit)
        document = compare_runs(reference, candidate)
        for name, run in (("reference", reference), ("candidate", candidate)):
            document[name]["trace"] = run_path(run)
        if document["verdict"] == "diverged":
            sides = [
                Side(name, read_trace(run.trace), again_at(self._project.commits, self._events, commit))
                for name, run, commit in (("reference", reference, parent), ("candidate", candidate, culprit))
            ]
            zoom_sides(document, *sides, repro=self._options.repro)
        else:
            self._notes.append(
                f"With every operator recorded, the commit and its parent compare as {document['verdict']}, "
                "although their contracts differed: look at `opguard replay`."
            )
        return document

    def _add_hunks(self, document: dict[str, Any], parent: str, patch: Path) -> None:
        """Find the pieces of the culprit that give its numbers, and leave a patch of them beside the journal."""
        culprit, job = document["first_bad"], self._contract
        whole = self._run(job, culprit)
        if whole.testable:
            pinned = self._project.commits.places.pinned(job)
            pieces = Pieces(self._project.repository, parent, culprit, ignored=pinned)

            def measure(changes: Changes, expected: Path) -> Run:
                return self._run(job, parent, expected, changes=changes)

            classes, divergence = Classes(self._with_events), document["divergence"] or {}
            found = narrow(pieces, whole, measure, classes, divergence, progress=self._options.progress)
            patch.write_bytes(found.patch)
            document.update(hunks=found.hunks, patch=str(patch))
            document["notes"] += found.notes
        else:
            document["notes"].append(
                f"The commit's hunks are not told apart: it does not come to its end, {whole.reason}"
            )
        document.update(runs=self._num_runs, cached=self._num_cached)

    def _declared(self) -> set[str]:
        """Commits whose message says that they change this recipe's numbers."""
        mine = recipe_id(self._contract.target, self._contract.cwd, str(self._project.root))
        return {commit.hash for commit in self._commits if mine in commit.rebaselines}

    def _subjects(self, commits: list[str]) -> dict[str, str]:
        named = {commit.hash: commit.subject for commit in self._commits}
        return {commit: named[commit] for commit in commits if commit in named}

    # The journal

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        job = self._contract
        recipe = hashlib.sha256(
            json.dumps([job.argv, job.steps, sorted(job.pins), self._project.config.build]).encode()
        )
        search = Search(
            self._good,
            self._bad,
            job.target,
            recipe.hexdigest()[:16],
            self._project.commits.places.profile(job),
            self._options.mode,
        )
        path = place_of(search, self._project.repository.identity)
        if not self._options.resume:
            path.unlink(missing_ok=True)
        with Journal(path, search, resume=True) as journal:
            yield journal

    def _write_log(self, journal: Path, state: State, outcome: Outcome) -> None:
        """Leave the search as ``git bisect log`` text beside its journal."""
        if outcome.candidates:
            subjects = {commit.hash: commit.subject for commit in self._commits}
            known: dict[str, Any] = dict(state.known)
            journal.with_suffix(".log").write_text(git_bisect_log(self._graph, known, outcome, subjects))
