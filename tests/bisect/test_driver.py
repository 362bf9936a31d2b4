"""Bisect on real repositories and real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.bisect.driver import BisectOptions, bisect, replay
from opguard_ci.bisect.history import history
from opguard_ci.errors import UntestableError, UsageError
from opguard_ci.guard import Project
from opguard_ci.worker.places import Job
from tests.gitrepo import GitRepo, fingerprint

HISTORIES = Path(__file__).parents[1] / "cases" / "data" / "histories"
pytestmark = pytest.mark.usefixtures("own_cache")

RECIPE = """
import torch
from net import scale

def train(mark=lambda i: None):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for i in range(3):
        mark(i)
        loss = (weight * torch.randn(8)).mul(scale()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"weight": weight.detach().clone()}
"""
STEADY = "def scale():\n    return 2.0\n"
CHANGED = "def scale():\n    return 3.0\n"
BROKEN = "def scale(:\n"
UNSTABLE = "import os\ndef scale():\n    return float(int.from_bytes(os.urandom(2), 'little'))\n"


def quietly(_: str) -> None:
    """Progress goes nowhere."""


FIRST = BisectOptions(progress=quietly)


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    made = GitRepo(tmp_path / "project")
    made.commit("first", recipe=RECIPE, net=STEADY)
    return made


@pytest.fixture(scope="module", params=["linear_eps", "evil_merge", "two_changes"])
def handed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("history") / request.param
    script = HISTORIES / f"{request.param}.py"
    made = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=True)
    yield folder, json.loads(made.stdout)


def search(folder: Path, good: str, bad: str, options: BisectOptions = FIRST, **changes: Any) -> dict[str, Any]:
    with Project(folder) as project:
        job = replace(Job("recipe.py:train", str(folder)), **changes)
        return bisect(project, job, good, bad, options)


def short(op: str) -> str:
    return op.replace("::", ".").rpartition(".")[0]


def test_a_handed_history_gives_commit_and_operator(handed: tuple[Path, dict[str, Any]]) -> None:
    """First bad commit, operator and step are those that the history prints; only broken commits are skipped."""
    folder, expected = handed
    found = search(folder, expected["good"], "HEAD")
    assert (found["verdict"], found["first_bad"]) == ("found", expected["first_bad"])
    divergence = found["divergence"]
    assert short(expected["op"]) in (short(divergence["op"]), short(divergence.get("computes") or ""))
    assert divergence["step"] == expected["step"]
    assert {entry["commit"] for entry in found["skipped"]} <= set(expected["skip"])
    assert found["transitions"][0]["commit"] == expected["first_bad"]


def test_history_calls_exactly_the_broken_commits_untestable(handed: tuple[Path, dict[str, Any]]) -> None:
    """A class for every commit that runs; refactorings keep the letter."""
    folder, expected = handed
    with Project(folder) as project:
        rows = history(project, Job("recipe.py:train", str(folder)), expected["good"], "HEAD", 1, quietly)["commits"]
    assert {row["commit"] for row in rows if row["class"] is None} == set(expected["skip"])
    letters = {row["commit"]: row["class"] for row in rows}
    for refactor in expected["refactors"]:
        parent = subprocess.run(
            ["git", "rev-parse", f"{refactor}^"], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()
        assert letters[parent] is None or letters[refactor] == letters[parent]


def test_the_second_of_two_changes_is_found_between_them(tmp_path: Path) -> None:
    """With a commit between the changes as the good end, the later change is the answer; --all finds both."""
    script = HISTORIES / "two_changes.py"
    made = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "h")], capture_output=True, text=True, check=True
    )
    expected = json.loads(made.stdout)
    found = search(tmp_path / "h", expected["between"], "HEAD")
    assert found["first_bad"] == expected["second_bad"]
    assert short(expected["second_op"]) in (short(found["divergence"]["op"]), short(found["divergence"]["computes"]))
    every = search(tmp_path / "h", expected["good"], "HEAD", replace(FIRST, mode="all"))
    assert [change["commit"] for change in every["transitions"]] == [expected["first_bad"], expected["second_bad"]]


def test_commits_that_cannot_run_leave_candidates(repo: GitRepo) -> None:
    """Where the commits before the first different one are untestable, all of them are candidates."""
    good = repo.git("rev-parse", "HEAD")
    broken = [repo.commit("broken one", net=BROKEN), repo.commit("broken two", net=BROKEN + "\n")]
    changed = repo.commit("changed", net=CHANGED)
    found = search(repo.dir, good, changed)
    assert (found["verdict"], found["first_bad"]) == ("candidates", None)
    assert found["candidates"] == [*broken, changed]
    assert {entry["commit"] for entry in found["skipped"]} == set(broken)
    assert all("SyntaxError" in entry["reason"] for entry in found["skipped"])


def test_equal_ends_find_nothing_and_name_the_next_thing_to_try(repo: GitRepo) -> None:
    """A change that was taken back is not looked for unless --exhaustive asks for it."""
    good = repo.git("rev-parse", "HEAD")
    away, back = repo.commit("away", net=CHANGED), repo.commit("back", net=STEADY)
    found = search(repo.dir, good, back)
    assert found["verdict"] == "nothing"
    assert any("--exhaustive" in note for note in found["notes"])
    every = search(repo.dir, good, back, replace(FIRST, mode="exhaustive"))
    assert [change["commit"] for change in every["transitions"]] == [away, back]
    beside = repo.commit("beside", readme="words")
    (note,) = search(repo.dir, back, beside)["notes"]
    assert note == "Both ends compute the same, and there is no commit between them."
    further = repo.commit("further", readme="more words")
    (note,) = search(repo.dir, back, further, replace(FIRST, mode="exhaustive"))["notes"]
    assert note == "Both ends compute the same, and so does every commit between them that could be tested."


def test_a_third_class_is_not_good(repo: GitRepo) -> None:
    """The first commit whose class is not good's is the answer, whatever came later."""
    good = repo.git("rev-parse", "HEAD")
    first = repo.commit("first change", net=CHANGED)
    repo.commit("neutral", note="# nothing\n")
    bad = repo.commit("second change", net="def scale():\n    return 4.0\n")
    assert search(repo.dir, good, bad)["first_bad"] == first


def test_a_declared_change_is_said_to_be_declared(repo: GitRepo) -> None:
    """The trailer names the recipe whose numbers a commit means to change."""
    from opguard_ci.store.recipes import recipe_id

    good = repo.git("rev-parse", "HEAD")
    name = recipe_id("recipe.py:train", str(repo.dir), str(repo.dir))
    bad = repo.commit(f"a better scale\n\nOpguard-Rebaseline: {name}", net=CHANGED)
    assert search(repo.dir, good, bad)["transitions"][0]["declared"] is True


@pytest.mark.parametrize("content", [BROKEN, UNSTABLE])
def test_an_end_that_proves_nothing_is_refused(repo: GitRepo, content: str) -> None:
    """An end that cannot be run, or does not repeat itself on a second server, ends the search with its reason."""
    good = repo.git("rev-parse", "HEAD")
    bad = repo.commit("worse", net=content)
    with pytest.raises(UntestableError) as caught:
        search(repo.dir, good, bad)
    assert caught.value.slug in ("untestable-bad", "unstable-end")
    assert bad[:12] in caught.value.message


def test_ends_that_make_no_sense_are_usage_errors(repo: GitRepo) -> None:
    """Swapped ends, unrelated ends and unknown commits are each one sentence that says what to do."""
    good = repo.git("rev-parse", "HEAD")
    bad = repo.commit("changed", net=CHANGED)
    repo.git("checkout", "-q", "--orphan", "other")
    other = repo.commit("unrelated")
    for ends, slug in (
        ((bad, good), "ends-swapped"),
        ((good, other), "unrelated-ends"),
        ((good, "nope"), "unknown-commit"),
    ):
        with pytest.raises(UsageError) as caught:
            search(repo.dir, *ends)
        assert caught.value.slug == slug
    assert search(repo.dir, good, good)["verdict"] == "nothing"


def test_the_users_checkout_stays_as_it_was(repo: GitRepo) -> None:
    """Not a file of the working tree, the index or .git is touched by a search over a dirty tree."""
    good = repo.git("rev-parse", "HEAD")
    bad = repo.commit("changed", net=CHANGED)
    repo.put("net.py", UNSTABLE)
    repo.put("new file.txt", "not committed")
    before = fingerprint(repo.dir)
    assert search(repo.dir, good, bad)["first_bad"] == bad
    assert fingerprint(repo.dir) == before


def test_a_search_is_resumed_and_replayed_from_its_journal(repo: GitRepo) -> None:
    """The journal alone gives the same answer; a second search finds its runs in the cache."""
    good = repo.git("rev-parse", "HEAD")
    for number in range(5):
        repo.commit(f"neutral {number}", note=f"# {number}\n")
    changed = repo.commit("changed", net=CHANGED)
    bad = repo.commit("neutral again", note="# again\n")
    first = search(repo.dir, good, bad)
    again = search(repo.dir, good, bad, replace(FIRST, resume=True))
    assert (first["first_bad"], again["first_bad"]) == (changed, changed)
    assert again["runs"] == 0
    with Project(repo.dir) as project:
        told = replay(project, Path(first["journal"]))
    assert (told["verdict"], told["first_bad"], told["runs"]) == ("found", changed, 0)
    log = Path(first["journal"]).with_suffix(".log")
    assert f"first bad commit: [{changed}]" in log.read_text()


def test_probes_run_side_by_side_give_the_same_answer(repo: GitRepo) -> None:
    """--jobs changes the time, not the answer."""
    good = repo.git("rev-parse", "HEAD")
    commits = [repo.commit(f"neutral {number}", note=f"# {number}\n") for number in range(6)]
    changed = repo.commit("changed", net=CHANGED)
    bad = [repo.commit(f"later {number}", note=f"# later {number}\n") for number in range(6)][-1]
    assert commits
    assert search(repo.dir, good, bad, replace(FIRST, jobs=2))["first_bad"] == changed


def test_each_commit_runs_its_own_target_and_pins_are_laid_over(repo: GitRepo) -> None:
    """A recipe that changes itself is found; pinned to today's, it is the same at every commit."""
    good = repo.git("rev-parse", "HEAD")
    bad = repo.commit("recipe changed", recipe=RECIPE.replace("lr=0.1", "lr=0.2"))
    assert search(repo.dir, good, bad)["first_bad"] == bad
    assert search(repo.dir, good, bad, pins=("recipe.py",))["verdict"] == "nothing"


def test_a_target_outside_of_the_repository_is_used_as_it_is(repo: GitRepo, tmp_path: Path) -> None:
    """A recipe kept elsewhere judges every commit, also those from before it was written."""
    outside = tmp_path / "elsewhere" / "mine.py"
    outside.parent.mkdir()
    outside.write_text(RECIPE)
    good = repo.git("rev-parse", "HEAD")
    bad = repo.commit("changed", net=CHANGED)
    assert search(repo.dir, good, bad, target=f"{outside}:train")["first_bad"] == bad


def test_a_change_of_generator_object_alone_is_no_change(repo: GitRepo) -> None:
    """At contract level only a generator state differs; the runs are made again with events before one is blamed."""
    good = repo.git("rev-parse", "HEAD")
    explicit = RECIPE.replace("weight =", "g = torch.Generator()\n    g.set_state(torch.get_rng_state())\n    weight =")
    repo.commit("explicit generator", recipe=explicit.replace("torch.randn(8)", "torch.randn(8, generator=g)"))
    assert search(repo.dir, good, "HEAD")["verdict"] == "nothing"
