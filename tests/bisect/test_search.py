"""The search against brute force: it sees all classes at once, the search only those it asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_ci.bisect.graph import Graph
from opguard_ci.bisect.search import Outcome, State, search


@dataclass
class Run:
    outcome: Outcome
    probes: list[str]
    classes: dict[str, str | None]

    @property
    def testable(self) -> list[str]:
        return [commit for commit in self.probes if self.classes[commit] is not None]


def play(graph: Graph, classes: dict[str, str | None], mode: str = "first") -> Run:
    """Run a search to its end with an oracle that knows every class."""
    probes: list[str] = []
    game = search(State(graph, mode))
    try:
        commit = next(game)
        while True:
            assert commit not in probes, "asked twice"
            probes.append(commit)
            commit = game.send(classes[commit])
    except StopIteration as end:
        return Run(end.value, probes, classes)


def names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def line(text: str, mode: str = "first") -> Run:
    """A linear history, one letter per commit (``.``: cannot be tested), good first."""
    commits = names(len(text))
    return play(Graph.linear(commits), {c: None if x == "." else x for c, x in zip(commits, text, strict=True)}, mode)


@st.composite
def histories(draw: st.DrawFn, max_commits: int = 24) -> tuple[Graph, dict[str, str | None]]:
    """A random graph with merges, branches from before the good commit, reverts and untestable commits."""
    count = draw(st.integers(3, max_commits))
    commits = names(count)
    parents: dict[str, tuple[str, ...]] = {commits[0]: ()}
    for number in range(1, count):
        main = commits[draw(st.integers(max(0, number - 3), number - 1))]
        others = draw(st.lists(st.sampled_from(commits[:number]), max_size=2 if draw(st.booleans()) else 0))
        parents[commits[number]] = tuple(dict.fromkeys([main, *others]))
    letters = st.sampled_from("GGGB" + draw(st.sampled_from(["G", "B", "C", "BBBC", "...", "B..."])))
    classes: dict[str, str | None] = {}
    for commit in commits:
        inherited = classes[parents[commit][0]] if parents[commit] else "G"
        letter = draw(letters) if inherited is None or draw(st.integers(0, 3)) == 0 else inherited
        classes[commit] = None if letter == "." else letter
    good, bad = commits[draw(st.integers(0, count - 2))], commits[-1]
    return subgraph(parents, good, bad), classes


def reachable(parents: dict[str, tuple[str, ...]], top: str) -> set[str]:
    found, stack = {top}, [top]
    while stack:
        for parent in parents.get(stack.pop(), ()):
            if parent not in found:
                found.add(parent)
                stack.append(parent)
    return found


def subgraph(parents: dict[str, tuple[str, ...]], good: str, bad: str) -> Graph:
    inside = reachable(parents, bad) - reachable(parents, good)
    return Graph(good, bad, {c: p for c, p in parents.items() if c in inside} or {bad: ()})


def brute_region(graph: Graph, classes: dict[str, str | None], suspect: str) -> set[str]:
    found, stack = {suspect}, [suspect]
    while stack:
        for parent in graph.parents[stack.pop()]:
            if parent in graph.parents and classes[parent] is None and parent not in found:
                found.add(parent)
                stack.append(parent)
    return found


@settings(max_examples=500, deadline=None)
@given(histories())
def test_the_commit_named_is_one_that_full_knowledge_names_too(history):
    """first_bad differs from good and all its parents have good's class; candidates are exactly what is untestable."""
    graph, classes = history
    run = play(graph, classes)
    outcome, wanted = run.outcome, classes[graph.good]
    if outcome.verdict == "nothing":
        assert (
            (outcome.reason == "equal-ends" and classes[graph.bad] == wanted)
            or (outcome.reason == "untestable-good" and wanted is None)
            or (outcome.reason == "untestable-bad" and classes[graph.bad] is None)
            or (outcome.reason == "inherited" and graph.bad not in graph.from_good)
        )
        return
    suspect = outcome.candidates[-1]
    assert classes[suspect] not in (None, wanted)
    assert suspect in graph.parents
    region = set(outcome.candidates)
    old = {c for c in outcome.inherited if classes[c] not in (None, wanted)}
    assert old == set(outcome.inherited)
    if not outcome.inherited:
        assert region == brute_region(graph, classes, suspect)
        for commit in region:
            for parent in set(graph.parents[commit]) - region:
                if parent in graph.parents or parent == graph.good:
                    assert classes[parent] == wanted
                    assert parent in run.probes
                elif commit not in graph.from_good:
                    assert classes[parent] == wanted or parent in outcome.unverified
    if outcome.verdict == "found":
        assert outcome.first_bad == suspect
        assert outcome.candidates == (suspect,)
        assert all(classes[parent] == wanted for parent in outcome.parents)
    else:
        assert len(region) > 1 or outcome.unverified
    if outcome.is_evil_merge:
        assert len(graph.parents[suspect]) > 1


@settings(max_examples=250, deadline=None)
@given(st.text("GBC.", min_size=0, max_size=80), st.sampled_from("BC"))
def test_a_linear_search_is_as_frugal_as_bisection(middle, last):
    """At most ceil(log2 n) + 2 testable probes besides the ends, whatever the classes and gaps are."""
    run = line("G" + middle + last)
    assert len(run.testable) - 2 <= math.ceil(math.log2(len(middle) + 1)) + 2
    names_, index = names(len(middle) + 2), int(run.outcome.candidates[-1][1:])
    text = "G" + middle + last
    start = index - len(run.outcome.candidates)
    assert text[start] == "G"
    assert set(text[start + 1 : index]) <= {"."}
    assert run.outcome.candidates == tuple(names_[start + 1 : index + 1])


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 400), st.data())
def test_one_change_costs_the_logarithm(count, data):
    """Without gaps a single change is found in ceil(log2 n) probes."""
    change = data.draw(st.integers(1, count - 1))
    run = line("G" * change + "B" * (count - change))
    assert run.outcome.first_bad == f"c{change}"
    assert len(run.probes) - 2 <= math.ceil(math.log2(count - 1))


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (100, range(350, 650)),
        (900, range(400, 600)),
        (520, range(500, 518)),
    ],
)
def test_a_block_of_broken_commits_is_jumped_over(change, broken):
    """Broken commits away from the change cost a few probes, not one each."""
    text = ["G"] * change + ["B"] * (1000 - change)
    for place in broken:
        text[place] = "."
    run = line("".join(text))
    assert run.outcome.first_bad == f"c{change}"
    assert len(run.probes) <= 32


def test_the_candidates_are_the_gap_and_the_first_testable_commit_that_differs():
    """As git bisect says it: everything after the last good one up to the first one that differs."""
    run = line("GGGG...BBBB")
    assert run.outcome.verdict == "candidates"
    assert run.outcome.first_bad is None
    assert run.outcome.candidates == ("c4", "c5", "c6", "c7")


def test_a_third_class_counts_as_a_change():
    """The first commit whose class is not good's, whatever bad's is."""
    assert line("GGGCCCBBB").outcome.first_bad == "c3"


def test_ends_of_one_class_are_nothing():
    """Nothing between equal ends is looked at, unless told to."""
    run = line("GGBBGG")
    assert (run.outcome.verdict, run.outcome.reason, len(run.probes)) == ("nothing", "equal-ends", 2)


@pytest.mark.parametrize(("text", "reason"), [(".GB", "untestable-good"), ("GG.", "untestable-bad")])
def test_an_end_that_cannot_be_tested_is_said(text, reason):
    """Without two classes there is nothing to search."""
    assert line(text).outcome.reason == reason


MERGE = {
    "root": (), "good": ("root",), "m1": ("good",), "m2": ("m1",),
    "b1": ("m1",), "b2": ("b1",), "b3": ("b2",), "merge": ("m2", "b3"), "m3": ("merge",), "bad": ("m3",),
}  # fmt: skip


def merged(bad_ones: str, parents: dict[str, tuple[str, ...]] = MERGE, broken: str = "") -> Run:
    graph = subgraph(parents, "good", "bad")
    classes = {c: "B" if c in bad_ones.split() else None if c in broken.split() else "G" for c in parents}
    return play(graph, classes)


def test_a_change_in_a_merged_branch_is_found_inside_it():
    """First parents first, then what the merge brought in."""
    run = merged("b2 b3 merge m3 bad")
    assert run.outcome.first_bad == "b2"
    assert not run.outcome.is_evil_merge


def test_an_evil_merge_is_named():
    """Both parents are good: the merge itself did it."""
    run = merged("merge m3 bad")
    assert run.outcome.first_bad == "merge"
    assert run.outcome.is_evil_merge
    assert set(run.outcome.parents) == {"m2", "b3"}


def test_a_change_that_a_merge_dropped_is_not_blamed():
    """A branch that differs but whose merge does not is no explanation."""
    run = merged("b2 b3 m3 bad")
    assert run.outcome.first_bad == "m3"


def test_a_change_before_the_branch_is_found_even_if_main_went_back():
    """The fork point is tried, not assumed: main changed, the branch kept it, main went back, the merge took it."""
    assert merged("m1 b1 b2 b3 merge m3 bad").outcome.first_bad == "m1"


def test_an_old_difference_brought_in_by_a_merge_is_said():
    """A branch from before good that always differed: its merge is the first bad commit, and the reason is told."""
    old = {**MERGE, "b1": ("root",)}
    run = merged("root b1 b2 b3 merge m3 bad", old)
    assert run.outcome.first_bad == "merge"
    assert run.outcome.inherited == ("root",)
    assert not run.outcome.is_evil_merge


def test_an_old_difference_behind_an_untestable_merge_is_said_too():
    """Nothing after the gap can be told apart, and the branch that the broken merge brought in was old already."""
    old = {**MERGE, "b1": ("root",)}
    run = merged("root m3 bad", old, broken="b1 b2 b3 merge")
    assert run.outcome.candidates == ("merge", "m3")
    assert run.outcome.inherited == ("root",)


def test_a_good_commit_that_is_no_ancestor_needs_a_good_common_one():
    """As git bisect: if what both share differs already, nothing was broken between."""
    parents = {"base": (), "good": ("base",), "x": ("base",), "bad": ("x",)}
    classes = {"base": "B", "good": "G", "x": "B", "bad": "B"}
    run = play(subgraph(parents, "good", "bad"), classes)
    assert (run.outcome.verdict, run.outcome.reason) == ("nothing", "inherited")
    classes["base"] = "G"
    assert play(subgraph(parents, "good", "bad"), classes).outcome.first_bad == "x"


def test_a_broken_merge_leaves_its_branch_among_the_candidates_only_as_far_as_needed():
    """An untestable merge is followed into its branch; a good branch tip clears the branch."""
    run = merged("m3 bad", broken="merge")
    assert run.outcome.candidates == ("merge", "m3")
    assert {"b3", "m2"} <= set(run.probes)


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(1, 5))
def test_probes_side_by_side_come_to_an_answer_of_the_same_kind(history, jobs):
    """Any number of probes at once, answered in any order, ends with a commit that full knowledge confirms."""
    graph, classes = history
    state = State(graph)
    rounds = 0
    while batch := state.next_probes(jobs):
        assert len(set(batch)) == len(batch) <= jobs
        assert not set(batch) & set(state.known)
        for commit in reversed(batch):
            state = state.advance(commit, classes[commit])
        rounds += 1
    outcome = state.outcome
    assert outcome is not None
    assert rounds <= len(classes)
    if outcome.verdict == "found" and not outcome.inherited:
        below = [p for p in graph.parents[outcome.first_bad] if p in graph.parents or p == graph.good]
        assert classes[outcome.first_bad] not in (None, classes[graph.good])
        assert all(classes[parent] == classes[graph.good] for parent in below)


def test_three_jobs_take_two_steps_of_a_bisection_at_once():
    """Parallel probes are the ones that the search would ask for after each outcome."""
    graph = Graph.linear(names(9))
    state = State(graph).advance("c0", "G").advance("c8", "B")
    assert set(state.next_probes(3)) == {"c2", "c4", "c6"}
    assert set(state.next_probes(2, pending=["c4"])) == {"c2", "c6"}


def test_what_is_pending_is_likely_good():
    """A run that differs ends early: while the middle still runs, the search goes on above it."""
    state = State(Graph.linear(names(9))).advance("c0", "G").advance("c8", "B").advance("c7", "B")
    assert state.next_probes(1, pending=["c4"]) == ["c6"]
    assert state.advance("c6", "B").next_probes(1, pending=["c4"]) == ["c5"]


@settings(max_examples=80, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_what_is_known_decides_and_not_the_order_it_came_in(history, random):
    """A journal may be replayed in any order: the state is the set of classes."""
    graph, classes = history
    run = play(graph, classes)
    shuffled = list(run.probes)
    random.shuffle(shuffled)
    state = State(graph)
    for commit in shuffled:
        state = state.advance(commit, classes[commit])
    assert state.outcome == run.outcome


@settings(max_examples=100, deadline=None)
@given(histories())
def test_facts_learned_elsewhere_do_not_mislead(history):
    """With every class known beforehand no probe is needed, and the commit named still fits."""
    graph, classes = history
    outcome = State(graph, "first", classes).outcome
    assert outcome is not None
    if outcome.verdict == "found" and not outcome.inherited:
        assert all(
            classes[p] == classes[graph.good]
            for p in graph.parents[outcome.first_bad]
            if p in graph.parents or p == graph.good
        )


# --- all transitions ------------------------------------------------------------------------------------------------


def changes(text: str) -> list[tuple[str, str, str]]:
    """Brute force: neighbours among the testable commits of a line that differ."""
    tested = [(f"c{n}", letter) for n, letter in enumerate(text) if letter != "."]
    return [(c, a, b) for (_, a), (c, b) in pairwise(tested) if a != b]


@settings(max_examples=120, deadline=None)
@given(st.text("GBC.", min_size=2, max_size=40))
def test_exhaustive_finds_every_change_of_a_line(text):
    """Every commit is tried and every pair of unequal neighbours is reported."""
    text = "G" + text + "G"
    run = line(text, "exhaustive")
    assert [(t.commit, t.origin, t.to) for t in run.outcome.transitions] == changes(text)
    assert set(run.probes) == set(names(len(text)))


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("GBCD."), st.integers(1, 9)), min_size=1, max_size=8))
def test_all_reports_only_true_changes_and_links_the_ends(runs):
    """Each reported change is one of brute force's, and together they lead from good's class to bad's."""
    text = "G" + "".join(letter * length for letter, length in runs) + "B"
    run = line(text, "all")
    found = [(t.commit, t.origin, t.to) for t in run.outcome.transitions]
    assert set(found) <= set(changes(text))
    assert [t[1] for t in found] == ["G", *(t[2] for t in found[:-1])]
    assert found[-1][2] == "B"


def test_all_finds_two_successive_changes_and_their_gap():
    """A change whose neighbour cannot be tested keeps its candidates."""
    run = line("GGGGBBBB..CCCC", "all")
    assert [(t.commit, t.before, t.candidates) for t in run.outcome.transitions] == [
        ("c4", "c3", ("c4",)),
        ("c10", "c7", ("c8", "c9", "c10")),
    ]
    assert run.outcome.first_bad == "c4"


def test_all_needs_few_probes_when_changes_are_few():
    """Two changes in 256 commits: about two bisections."""
    run = line("G" * 100 + "B" * 60 + "C" * 96, "all")
    assert len(run.outcome.transitions) == 2
    assert len(run.probes) <= 18


def test_all_attributes_a_change_to_the_commit_inside_the_merged_branch():
    """The merge that differs from its first parent is explained by its branch, and is not listed itself."""
    graph = subgraph(MERGE, "good", "bad")
    classes = dict.fromkeys(MERGE, "G") | dict.fromkeys(["b2", "b3", "merge", "m3"], "B") | {"bad": "C"}
    run = play(graph, classes, "all")
    assert [(t.commit, t.merge) for t in run.outcome.transitions] == [("b2", "merge"), ("bad", None)]


def test_all_lists_a_merge_that_is_evil_on_top_of_its_branch():
    """The branch changed, main did not, and the merge is neither: both are reported."""
    graph = subgraph(MERGE, "good", "bad")
    classes = dict.fromkeys(MERGE, "G") | dict.fromkeys(["b2", "b3"], "X") | dict.fromkeys(["merge", "m3", "bad"], "Y")
    assert [t.commit for t in play(graph, classes, "all").outcome.transitions] == ["b2", "merge"]
    classes |= {"b2": "G", "b3": "G"}
    assert play(graph, classes, "all").outcome.is_evil_merge


def test_exhaustive_looks_into_branches_that_changed_nothing():
    """Change and back inside a merged branch shows only when everything is tried."""
    graph = subgraph(MERGE, "good", "bad")
    classes = dict.fromkeys(MERGE, "G") | {"b2": "X"}
    assert play(graph, classes, "all").outcome.transitions == ()
    assert [t.commit for t in play(graph, classes, "exhaustive").outcome.transitions] == ["b2", "b3"]


@settings(max_examples=120, deadline=None)
@given(histories(), st.sampled_from(["all", "exhaustive"]))
def test_every_transition_is_between_unequal_neighbours(history, mode):
    """Each change reported has the classes it claims, and only untestable commits lie between its ends."""
    graph, classes = history
    for change in play(graph, classes, mode).outcome.transitions:
        assert classes[change.before] == change.origin != change.to == classes[change.commit]
        assert change.candidates[-1] == change.commit
        assert all(classes[commit] is None for commit in change.candidates[:-1])
        assert change.before in graph.parents[change.candidates[0]]
