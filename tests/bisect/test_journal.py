"""The journal survives crashes, refuses to mix searches, and tells git the same story."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_ci.bisect.graph import Graph
from opguard_ci.bisect.journal import Journal, Probe, Search, git_bisect_log, read_journal, replayed
from opguard_ci.bisect.search import Outcome, State
from opguard_ci.errors import UsageError
from tests.gitrepo import GitRepo

SEARCH = Search("g" * 40, "b" * 40, "recipe.py:tiny", "digest", "strict", "first", "key")
PROBES = [
    Probe("c1", "class-1", "", 1.5, False),
    Probe("c2", None, "ImportError: \u00fc\nno module", 0.1, False),
    Probe("c3", "class-2", cached=True),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.jsonl"


def write(path: Path, probes: list[Probe] = PROBES) -> None:
    with Journal(path, SEARCH) as journal:
        for probe in probes:
            journal.add(probe)


def test_what_was_written_is_read(path):
    """Header and probes come back equal; every line is one JSON object."""
    write(path)
    assert read_journal(path) == (SEARCH, PROBES)
    assert [json.loads(line)["commit"] for line in path.read_text().splitlines()[1:]] == ["c1", "c2", "c3"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 600))
def test_a_journal_cut_anywhere_goes_on(path, cut):
    """A crash leaves the beginning of the file: whole lines count, the torn one goes, and the rest is added."""
    path.unlink(missing_ok=True)
    write(path)
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    left = max(data[:cut].count(b"\n") - 1, 0)
    with Journal(path, SEARCH, resume=True) as journal:
        assert journal.probes == PROBES[:left]
        for probe in PROBES[left:]:
            journal.add(probe)
    assert path.read_bytes() == data


@pytest.mark.parametrize("name", ["good", "bad", "target", "recipe", "profile", "mode", "environment"])
def test_another_search_is_refused(path, name):
    """Classes of other ends, recipes or profiles mean nothing here."""
    write(path)
    before = path.read_bytes()
    with pytest.raises(UsageError) as error:
        Journal(path, replace(SEARCH, **{name: "all" if name == "mode" else "other"}), resume=True)
    assert error.value.slug == "journal-mismatch"
    assert path.read_bytes() == before


def test_an_earlier_search_is_not_overwritten(path):
    """Without --resume an existing journal stays."""
    write(path)
    with pytest.raises(UsageError) as error:
        Journal(path, SEARCH)
    assert error.value.slug == "journal-exists"


@pytest.mark.parametrize(
    "line",
    ["not json", "[1]", '{"commit": "x"}', '{"commit": 1, "label": "a"}', '{"commit": "x", "label": "a", "y": 1}'],
)
def test_a_damaged_line_is_named(path, line):
    """Only the last line may be torn; anything else is somebody's edit."""
    write(path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UsageError, match="Line 5") as error:
        read_journal(path)
    assert error.value.slug == "journal-damaged"


def test_other_files_are_no_journals(path, tmp_path):
    """A missing file and a foreign one."""
    with pytest.raises(UsageError) as missing:
        read_journal(path)
    assert missing.value.slug == "journal-not-found"
    other = tmp_path / "other"
    other.write_text('{"schema": 1}\n')
    with pytest.raises(UsageError) as foreign:
        read_journal(other)
    assert foreign.value.slug == "journal-damaged"


def play(graph: Graph, classes: dict[str, str | None]) -> State:
    state = State(graph)
    while probes := state.next_probes():
        state = state.advance(probes[0], classes[probes[0]])
    return state


def test_a_journal_replays_into_the_same_search():
    """Half of the probes and then the rest end where the whole search did."""
    graph = Graph.linear([f"c{n}" for n in range(20)])
    classes = {f"c{n}": None if n in (9, 10) else "G" if n < 13 else "B" for n in range(20)}
    done = play(graph, classes)
    probes = [Probe(commit, label) for commit, label in done.known.items()]
    state = replayed(graph, SEARCH, probes[:4])
    assert state.outcome is None
    for probe in probes[4:]:
        assert state.next_probes() == [probe.commit]
        state = state.advance(probe.commit, probe.label)
    assert state.outcome == done.outcome


def branchy(repo: GitRepo) -> tuple[Graph, list[str]]:
    """Ten commits, a branch of four, its merge, five more."""
    main = [repo.commit(f"main {n}") for n in range(10)]
    repo.git("checkout", "-q", "-b", "side", main[6])
    side = [repo.commit(f"side {n}\twith 'quotes'") for n in range(4)]
    repo.git("checkout", "-q", "main")
    repo.clock += 60
    repo.git("merge", "-q", "--no-ff", "side", "-m", "merge")
    merge = repo.git("rev-parse", "HEAD")
    rest = [repo.commit(f"rest {n}") for n in range(5)]
    listed = repo.git("rev-list", "--topo-order", "--reverse", "--parents", rest[-1], f"^{main[0]}").splitlines()
    parents = {line.split()[0]: tuple(line.split()[1:]) for line in listed}
    return Graph(main[0], rest[-1], parents), [*main, *side, merge, *rest]


@pytest.mark.parametrize(
    ("bad", "broken"),
    [
        (range(4, 20), ()),  # on the main line, before the branch
        ([11, 12, 13, *range(14, 20)], ()),  # in the branch
        (range(14, 20), ()),  # the merge itself
        (range(17, 20), (15, 16)),  # behind a gap
        ([*range(4, 7), 10, 11, 12, 13, *range(14, 20)], ()),  # main went back, the branch kept it
        ([13, *range(14, 20)], (11, 12)),  # a gap in the branch
    ],
)
def test_git_replays_the_export_to_the_same_answer(tmp_path, bad, broken):
    """Real git reads the text and names the same commit, or the same candidates."""
    repo = GitRepo(tmp_path / "repo")
    graph, commits = branchy(repo)
    classes = {c: None if n in broken else "B" if n in bad else "G" for n, c in enumerate(commits)}
    state = play(graph, classes)
    subjects = dict.fromkeys(commits, "a subject\ngit bisect reset")
    text = git_bisect_log(graph, state.known, state.outcome, subjects)
    (tmp_path / "log").write_text(text)
    done = subprocess.run(["git", "bisect", "replay", tmp_path / "log"], cwd=repo.dir, env=repo.environment(),
                          capture_output=True, text=True, check=False)  # fmt: skip
    shown = done.stdout
    assert done.returncode == (0 if state.outcome.first_bad else 2), done.stderr
    if state.outcome.first_bad:
        assert f"{state.outcome.first_bad} is the first bad commit" in shown
    else:
        said = shown.partition("The first bad commit could be any of:")[2]
        assert set(said.split()) & set(commits) == set(state.outcome.candidates)


def test_a_search_without_an_answer_has_no_export():
    """There is nothing that git could be told."""
    graph = Graph.linear(["a", "b"])
    with pytest.raises(UsageError) as error:
        git_bisect_log(graph, {"a": "G", "b": "G"}, Outcome("nothing", reason="equal-ends"), {})
    assert error.value.slug == "nothing-to-export"
