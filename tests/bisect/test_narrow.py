"""The culprit's hunks, on real repositories and real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opguard_ci.bisect.driver import BisectOptions, bisect
from opguard_ci.bisect.narrow import MAX_LINES, holds_frame
from opguard_ci.cli import main
from opguard_ci.guard import Project
from opguard_ci.report.bisect import render_bisect
from opguard_ci.worker.pieces import Lines, Piece
from opguard_ci.worker.places import Job
from tests.bisect.test_driver import RECIPE, quietly
from tests.gitrepo import GitRepo, fingerprint

pytestmark = pytest.mark.usefixtures("own_cache")

NET = """\
from other import bias


def scale():
    return 2.0


def unused_one():
    return 1


def unused_two():
    return 2
"""
OTHER = "def bias():\n    return 0.0\n\n\ndef gain():\n    return 0.0\n"


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    made = GitRepo(tmp_path / "project")
    made.commit("first", recipe=RECIPE, net=NET, other=OTHER)
    return made


def hunks(repo: GitRepo, **job: Any) -> dict[str, Any]:
    with Project(repo.dir) as project:
        options = BisectOptions(hunks=True, progress=quietly)
        return bisect(project, Job("recipe.py:train", str(repo.dir), **job), "HEAD~1", "HEAD", options)


def named(document: dict[str, Any]) -> list[tuple[str, list[int] | None]]:
    return [(hunk["file"], hunk["lines"]) for hunk in document["hunks"]]


def text(document: dict[str, Any]) -> str:
    return "\n".join(line.text for line in render_bisect(document))


def test_one_hunk_among_many(repo: GitRepo) -> None:
    """The one that changes numbers, with its lines; the patch of it alone gives the same numbers, and is no more."""
    changed = NET.replace("2.0", "3.0").replace("return 1", "return 10").replace("return 2\n", "return 20\n")
    repo.put("README", "new\n")
    repo.commit("changed", net=changed, other=OTHER + "# more\n")
    before = fingerprint(repo.dir)
    found = hunks(repo)
    assert fingerprint(repo.dir) == before
    assert named(found) == [("net.py", [5, 5])]
    (hunk,) = found["hunks"]
    assert (hunk["kind"], hunk["old_lines"], hunk["proven"]) == ("hunk", [5, 5], True)
    assert hunk["text"] == ["-    return 2.0", "+    return 3.0"]
    assert "net.py:5" in text(found)
    assert "+    return 3.0" in text(found)
    repo.git("checkout", "-q", "HEAD~1")
    repo.git("apply", found["patch"])
    assert (repo.dir / "net.py").read_text() == NET.replace("2.0", "3.0")
    assert not (repo.dir / "README").exists()


def test_two_hunks_in_two_files_that_only_count_together(repo: GitRepo) -> None:
    """Neither changes anything alone, so both are named; and nothing else is."""
    changed = NET.replace("return 2.0", "return 2.0 + bias()").replace("return 1", "return 10")
    repo.commit("changed", net=changed, other=OTHER.replace("0.0", "1.0").replace("bias():", "bias():  # two"))
    found = hunks(repo)
    assert {file for file, _ in named(found)} == {"net.py", "other.py"}
    assert ("net.py", [5, 5]) in named(found)
    assert len(found["hunks"]) == 2


def test_third_numbers_are_not_the_commits(repo: GitRepo) -> None:
    """Two hunks that both change numbers, each in its own way, are both the commit's change."""
    recipe = RECIPE.replace("lr=0.1", "lr=0.2")
    repo.commit("changed", net=NET.replace("2.0", "3.0").replace("return 1", "return 10"), recipe=recipe)
    found = hunks(repo)
    assert {file for file, _ in named(found)} == {"net.py", "recipe.py"}
    assert len(found["hunks"]) == 2


def test_the_hunk_that_holds_a_frame_is_marked_and_tried_first(repo: GitRepo) -> None:
    """One more run is enough then; the report shows which it is."""
    changed = "".join(f"# {number}\n\nx{number} = 1\n" for number in range(30))
    repo.commit("changed", recipe=RECIPE.replace(".mul(scale())", ".mul(scale() + 1)"), net=NET + changed)
    found = hunks(repo)
    assert [(h["file"], h["frame"]) for h in found["hunks"]] == [("recipe.py", True)]
    assert "> recipe.py:" in text(found)


def test_hunks_that_only_run_together_are_said_to_be(repo: GitRepo) -> None:
    """A function and its call are renamed with the change: without either half the commit cannot be run."""
    repo.commit("changed", net=NET.replace("scale", "factor").replace("2.0", "3.0"),
                recipe=RECIPE.replace("scale", "factor"))  # fmt: skip
    found = hunks(repo)
    assert {file for file, _ in named(found)} == {"net.py", "recipe.py"}
    assert not all(hunk["proven"] for hunk in found["hunks"])
    assert "cannot be run" in text(found)


def test_binary_data_and_a_file_with_a_new_name_are_one_piece_each(repo: GitRepo) -> None:
    """The recipe reads bytes from a file; what else the commit did is left out."""
    reading = RECIPE.replace("scale()", "float(open('data.bin', 'rb').read()[1])")
    repo.put("data.bin", b"\0\1")
    repo.put("notes.txt", "a\nb\nc\n")
    repo.commit("reads", recipe=reading)
    repo.put("data.bin", b"\0\2")
    (repo.dir / "notes.txt").rename(repo.dir / "renamed.txt")
    repo.commit("changed")
    found = hunks(repo)
    assert [(h["file"], h["kind"], h["lines"]) for h in found["hunks"]] == [("data.bin", "binary", None)]
    assert "data.bin (binary file changed)" in text(found)


def test_pinned_files_are_not_searched(repo: GitRepo) -> None:
    """The recipe of the working tree runs at every commit, so its own change is none."""
    repo.commit("changed", net=NET.replace("2.0", "3.0"), recipe=RECIPE.replace("lr=0.1", "lr=0.2"))
    assert named(hunks(repo, pins=("recipe.py",))) == [("net.py", [5, 5])]


def test_a_frame_is_looked_for_on_its_own_side() -> None:
    """A line that the candidate lacks is known by its number in the parent."""
    piece = Piece("hunk", "old.py", "new.py", Lines(10, 2), Lines(30, 1))
    for side, file, line, expected in (
        ("candidate", "new.py", 30, True), ("candidate", "new.py", 31, False), ("candidate", "old.py", 10, False),
        ("reference", "old.py", 11, True), ("reference", "old.py", 12, False), ("reference", "new.py", 30, False),
    ):  # fmt: skip
        assert holds_frame(piece, {"side": side, "stack": [{"file": file, "line": line}]}) is expected
    assert not holds_frame(piece, {})


def test_a_journal_alone_tells_no_hunks(capsys: pytest.CaptureFixture[str]) -> None:
    """--replay runs nothing, so it is refused together with --hunks."""
    assert main(["bisect", "--replay", "some.jsonl", "--hunks"]) == 2
    assert "replay-hunks" in capsys.readouterr().err


def test_a_long_hunk_is_cut_in_the_report_alone(repo: GitRepo) -> None:
    """A new file of many lines is one piece; the patch holds all of it."""
    lines = "".join(f"y{number} = 1\n" for number in range(100))
    repo.commit("changed", net="from fresh import scale\n", fresh=lines + "def scale():\n    return 3.0\n")
    found = hunks(repo)
    by_file = {hunk["file"]: hunk for hunk in found["hunks"]}
    assert by_file["fresh.py"]["lines"] == [1, 102]
    assert all(len(hunk["text"]) <= MAX_LINES for hunk in found["hunks"])
    assert "y99 = 1" in Path(found["patch"]).read_text()
