from __future__ import annotations

import json
from pathlib import Path

import pytest

from opguard_ci.errors import IncomparableError, UsageError
from opguard_ci.store.golden import MAX_COMMITTED, Blessing, Golden, Goldens, numerics_digest
from opguard_ci.trace.reader import read_trace
from tests.trace.folders import training_run, write

DIGESTS = {"loss": "a" * 32, "parameters": "b" * 32, "data": "c" * 32, "operators": {"forward": "d" * 32}}


def blessing(when: str = "2026-01-01T00:00:00+00:00", new: str = "n1", old: str | None = None) -> Blessing:
    return Blessing("Ada <ada@example.invalid>", when, "it is right", "e" * 40, "f" * 40, new, old)


@pytest.fixture
def goldens(tmp_path: Path) -> Goldens:
    return Goldens(tmp_path / "golden", [tmp_path / "elsewhere"])


def trace(folder: Path, key: str = "k" * 16, events: int = 20) -> Path:
    return write(folder, training_run(2, events), environment={"key": key, "document": {"torch": "2.13.0"}})


def kept(goldens: Goldens, folder: Path, recipe: str = "r-1", **how: str) -> Golden:
    key = how.pop("key", "k" * 16)
    return goldens.write(recipe, trace(folder, key), blessing(**how), {"target": "train.py:main"})


def test_a_golden_is_a_manifest_and_an_object(goldens: Goldens, tmp_path: Path) -> None:
    """The manifest says who, when, why and old -> new; the events lie in objects under their sha256."""
    golden = kept(goldens, tmp_path / "t")
    assert golden.path == tmp_path / "golden" / "r-1" / f"{'k' * 16}.json"
    document = json.loads(golden.path.read_text())
    assert (document["who"], document["why"], document["old"], document["new"]) == (
        "Ada <ada@example.invalid>", "it is right", None, "n1",
    )  # fmt: skip
    assert document["commit"] == "e" * 40
    (name,) = [file.name for file in (tmp_path / "golden" / "objects").iterdir()]
    assert document["objects"]["events-0.arrows"]["sha256"] == name
    assert len(list(read_trace(golden.path).steps())) == 2


def test_large_events_lie_elsewhere(goldens: Goldens, tmp_path: Path) -> None:
    """What is larger than the limit is not put into the repository, and is found all the same."""
    folder = trace(tmp_path / "t", events=5_000)
    assert (folder / "events-0.arrows").stat().st_size > MAX_COMMITTED
    goldens.write("r-1", folder, blessing(), {})
    assert not (tmp_path / "golden" / "objects").exists()
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    found = goldens.find("r-1", "k" * 16)
    assert found is not None and len(list(found.trace.steps())) == 2


def test_history_is_kept(goldens: Goldens, tmp_path: Path) -> None:
    """Blessing again replaces the golden and keeps every earlier blessing; no event file is deleted."""
    kept(goldens, tmp_path / "a", when="2026-01-01T00:00:00+00:00", new="n1")
    kept(goldens, tmp_path / "b", when="2026-01-02T00:00:00+00:00", new="n2", old="n1")
    golden = kept(goldens, tmp_path / "c", when="2026-01-03T00:00:00+00:00", new="n3", old="n2")
    assert [each.new for each in golden.blessings] == ["n1", "n2", "n3"]
    assert golden.latest.old == "n2"


def test_newest_first(goldens: Goldens, tmp_path: Path) -> None:
    """Goldens of all environments, by when they were blessed."""
    kept(goldens, tmp_path / "a", key="a" * 16, when="2026-01-02T00:00:00+00:00")
    kept(goldens, tmp_path / "b", key="b" * 16, when="2026-01-03T00:00:00+00:00")
    kept(goldens, tmp_path / "c", key="c" * 16, when="2026-01-01T00:00:00+00:00")
    assert [golden.key[0] for golden in goldens.of("r-1")] == ["b", "a", "c"]
    assert goldens.of("r-2") == []


def test_another_versions_golden_is_told_apart(goldens: Goldens, tmp_path: Path) -> None:
    """It is no error among others, but it is no golden for this version either, and nothing is pruned beside it."""
    golden = kept(goldens, tmp_path / "a")
    golden.path.write_text(golden.path.read_text().replace('"schema": 1', '"schema": 99'))
    assert goldens.of("r-1") == []
    for call in (lambda: goldens.find("r-1", "k" * 16), lambda: goldens.prunable(None, ())):
        with pytest.raises(IncomparableError):
            call()


@pytest.mark.parametrize("edit", ['"who": 3', '"who": null'])
def test_a_golden_without_its_blessing_is_refused(goldens: Goldens, tmp_path: Path, edit: str) -> None:
    """Somebody edited it by hand."""
    golden = kept(goldens, tmp_path / "a")
    golden.path.write_text(golden.path.read_text().replace('"who": "Ada <ada@example.invalid>"', edit, 1))
    with pytest.raises(UsageError) as caught:
        goldens.find("r-1", "k" * 16)
    assert caught.value.slug == "not-a-golden"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Is a sentence, and leaves nothing half done."""
    (tmp_path / "golden").write_text("in the way")
    with pytest.raises(UsageError) as caught:
        kept(Goldens(tmp_path / "golden", [tmp_path]), tmp_path / "a")
    assert caught.value.slug == "golden-unwritable"


def test_prunable_files_and_their_reasons(goldens: Goldens, tmp_path: Path) -> None:
    """Goldens of recipes that are gone or of a given environment, and events that none that stays names."""
    stays = kept(goldens, tmp_path / "a", recipe="stays")
    gone = kept(goldens, tmp_path / "b", recipe="gone")
    unused = tmp_path / "golden" / "objects" / ("0" * 64)
    unused.write_bytes(b"old")
    assert [file for file, _ in goldens.prunable(None, ())] == [unused]
    assert [file for file, _ in goldens.prunable({"stays"}, ())] == [gone.path, unused]
    everything = [file for file, _ in goldens.prunable({"stays"}, ["k" * 16])]
    assert {gone.path, stays.path, unused} < set(everything)
    assert stays.path.exists()
    goldens.remove(everything)
    assert list((tmp_path / "golden").rglob("*")) == []


def test_the_digest_is_over_what_is_promised() -> None:
    """Another value changes it; other operators on the way do not."""

    def digest(**changes: object) -> str:
        return numerics_digest({"steps": [{"step": 0, "events": 3, "digests": {**DIGESTS, **changes}}]})

    assert digest() == digest(operators={"forward": "0" * 32}, data="0" * 32)
    assert digest() != digest(loss="0" * 32)
