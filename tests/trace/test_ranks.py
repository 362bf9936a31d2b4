from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.errors import UsageError
from opguard_ci.trace.digest import combined_digests
from opguard_ci.trace.manifest import parse
from opguard_ci.trace.ranks import merge_parts, merged, of_rank
from opguard_ci.trace.reader import read_trace
from opguard_ci.trace.writer import TraceWriter, make_folder

from .folders import manifest

OK = {"status": "ok"}


def part(rank: int, steps: int, *, ranks: int = 2, complete: bool = True, **changes: Any) -> dict[str, Any]:
    """What one rank says of a run."""
    own = [{"events": 2 + rank, "digests": digests(rank, step), "flagged": []} for step in range(steps)]
    placed = [[mine if other == rank else None for other in range(ranks)] for mine in own]
    entries = [{"step": step, "events": 2 + rank, "digests": {}, "ranks": all_} for step, all_ in enumerate(placed)]
    coverage = {"operators": 5, "hashed": 4, "unhashed": [], "unseen": []}
    objects = {f"events-{rank}.arrows": {"sha256": f"{rank:064x}", "bytes": 9, "events": 2 * steps}}
    said: dict[str, Any] = {"rank": rank, "ranks": ranks, "steps": entries, "coverage": coverage, "objects": objects}
    return {**manifest(), **said, "notes": [], "complete": complete, **changes}


def digests(*words: int) -> dict[str, Any]:
    return {"loss": "".join(f"{word:02x}" for word in words).ljust(32, "0"), "operators": {"forward": "a" * 32}}


def test_one_manifest_of_all_ranks() -> None:
    """What ranks say is added up; per step there is what each of them says, and digests over all."""
    found = merged([part(0, 2), part(1, 2)], OK)
    assert found["complete"]
    assert "rank" not in found
    assert sorted(found["objects"]) == ["events-0.arrows", "events-1.arrows"]
    assert (found["coverage"]["operators"], found["coverage"]["hashed"]) == (10, 8)
    assert [entry["events"] for entry in found["steps"]] == [5, 5]
    assert found["steps"][0]["digests"]["loss"] != found["steps"][1]["digests"]["loss"]
    assert [of_rank(found, rank)["steps"][1]["digests"] for rank in range(2)] == [digests(0, 1), digests(1, 1)]
    assert parse(json.dumps(found).encode())["steps"] == found["steps"]


def test_ranks_with_more_steps() -> None:
    """Of a run that came to its end all steps count, of another one those that all ranks have."""
    found = merged([part(0, 3), part(1, 2)], OK)
    assert [entry["ranks"][1] is None for entry in found["steps"]] == [False, False, True]
    assert [entry["step"] for entry in of_rank(found, 1)["steps"]] == [0, 1]
    broken = merged([part(0, 3), part(1, 2, complete=False)], {"status": "untestable", "slug": "crashed", "rank": 1})
    assert [entry["step"] for entry in broken["steps"]] == [0, 1]
    assert (broken["complete"], broken["outcome"]["rank"]) == (False, 1)
    none = merged([part(0, 3), None], {"status": "untestable", "slug": "crashed"})
    assert (none["complete"], none["steps"]) == (False, [])


def test_what_only_some_ranks_say_names_them() -> None:
    """A note of all ranks stands once, one of some with their numbers."""
    unseen = {"operators": 1, "hashed": 1, "unhashed": [], "unseen": ["a process"]}
    found = merged([part(0, 1, notes=["both", "mine"]), part(1, 1, notes=["both"], coverage=unseen)], OK)
    assert found["notes"] == ["both", "rank 0: mine"]
    assert found["coverage"]["unseen"] == ["rank 1: a process"]


def test_parts_become_one_file(tmp_path: Path) -> None:
    """The parts that ranks left are replaced by one manifest; once that is done nothing is left to do."""
    for rank in range(2):
        writer = TraceWriter(tmp_path, rank)
        writer.write_manifest(part(rank, 0, complete=False, objects={}))
        writer.close()
    assert merge_parts(tmp_path, {"status": "untestable", "slug": "killed"}, "aten.mm.default") is not None
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["events-0.arrows", "events-1.arrows", "manifest.json"]
    assert read_trace(tmp_path).manifest["last_operator"] == "aten.mm.default"
    assert merge_parts(tmp_path, OK) is None


def test_a_run_that_was_killed_whole_can_be_read(tmp_path: Path) -> None:
    """What rank 0 wrote before anybody could put the parts together is a trace."""
    writer = TraceWriter(tmp_path)
    writer.write_manifest(part(0, 1, complete=False, objects={}))
    writer.close()
    assert (read_trace(tmp_path).manifest["ranks"], read_trace(tmp_path).manifest["complete"]) == (2, False)


@pytest.mark.parametrize(
    "ranks",
    [
        [None],
        [None, {"events": "many"}],
        [None, {"events": 1, "digests": {"loss": "short"}}],
        "all",
        [None, None, None],
    ],
)
def test_strange_ranks_are_refused(ranks: object) -> None:
    """A step that says something else than one account per rank makes the manifest a damaged one."""
    found = merged([part(0, 1), part(1, 1)], OK)
    found["steps"][0]["ranks"] = ranks
    with pytest.raises(ValueError, match="steps"):
        parse(json.dumps(found).encode())


def test_a_folder_for_several_ranks(tmp_path: Path) -> None:
    """It is made, or an empty one is taken; one that holds something is refused."""
    make_folder(tmp_path / "new")
    make_folder(tmp_path / "new")
    (tmp_path / "new" / "mine").touch()
    with pytest.raises(UsageError) as error:
        make_folder(tmp_path / "new")
    assert error.value.slug == "output-exists"


WORDS = st.dictionaries(st.sampled_from(["loss", "data", "rng"]), st.text("0123456789abcdef", min_size=32, max_size=32))
STEP = st.one_of(st.none(), WORDS)


@given(st.lists(STEP, min_size=2, max_size=4), st.lists(STEP, min_size=2, max_size=4))
def test_combined_digests_are_equal_when_all_are(left: list[Any], right: list[Any]) -> None:
    """Digests over ranks are equal if and only if those of every rank are; a rank without the step is one, too."""
    named = [[digests or {} for digests in side] for side in (left, right)]
    if len(left) == len(right):
        assert (combined_digests(left) == combined_digests(right)) == (named[0] == named[1])
