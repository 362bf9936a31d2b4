"""Several ranks are one run: started by torch's launcher, ended together, accounted for one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opguard_ci.errors import UsageError
from opguard_ci.worker import client, processes
from opguard_ci.worker.request import RunRequest

from .conftest import HERE, Ranks


def test_ranks_are_started_as_torchrun_would(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank finds torchrun's variables and the user's own, one thread, and the profile's pins in force."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    ran = ranks.run("places")
    assert ran.lines == [f"rank {rank}: {rank} {rank} 2 127.0.0.1 1 opguard 3,1 None 1 True" for rank in range(2)]


def test_one_folder_holds_all_ranks(ranks: Ranks) -> None:
    """A trace has the events of each rank and one manifest, which says per step and rank what there is."""
    ran = ranks.run("ddp")
    assert ran.result.status == "ok", ran.outcome
    names = sorted(file.name for file in ran.folder.iterdir())
    assert names == ["events-0.arrows", "events-1.arrows", "manifest.json"]
    manifest = ran.trace.manifest
    assert (manifest["ranks"], manifest["complete"], len(manifest["objects"])) == (2, True, 2)
    assert [entry["step"] for entry in manifest["steps"]] == [0, 1, 2]
    for entry in manifest["steps"]:
        assert entry["events"] == sum(mine["events"] for mine in entry["ranks"])
        assert entry["ranks"][0]["digests"]["parameters"] == entry["ranks"][1]["digests"]["parameters"]
        assert entry["ranks"][0]["digests"]["loss"] != entry["ranks"][1]["digests"]["loss"]
    assert manifest["coverage"]["operators"] == sum(
        event.kind != "contract" for rank in range(2) for event in ran.events(rank)
    )


def test_a_folder_that_is_taken_stays_as_it_is(ranks: Ranks, tmp_path: Path) -> None:
    """No rank writes into a folder that holds something."""
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "mine").touch()
    with pytest.raises(UsageError, match="not empty"):
        ranks.run("places")
    assert [file.name for file in (tmp_path / "run-1").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("name", "slug", "says"),
    [
        ("raises", "target-raised", "rank 1: programs.py:raises raised ValueError: bad batch"),
        ("dies", "crashed", "code 7, before it was done; the last operator was aten."),
        ("leaves", "exit-code", "rank 1: The target ended itself with exit code 3."),
    ],
)
def test_the_rank_that_failed_decides(ranks: Ranks, name: str, slug: str, says: str) -> None:
    """The first rank that fails gives the run its outcome, with its number; the others are ended, and that is said."""
    ran = ranks.run(name)
    assert (ran.result.status, ran.outcome["slug"], ran.outcome["rank"]) == ("untestable", slug, 1)
    assert says in ran.outcome["message"]
    assert ("bad batch" in ran.outcome["traceback"]) == (name == "raises")
    assert any(note.startswith("rank 0") for note in ran.outcome["notes"])
    assert ran.result.seconds < 15
    manifest = ran.trace.manifest
    assert (manifest["complete"], manifest["outcome"]["rank"], manifest["outcome"]["slug"]) == (False, 1, slug)
    assert manifest["steps"][0]["step"] == 0


def test_a_rank_that_hangs_is_named(ranks: Ranks) -> None:
    """At the timeout the rank that was not waiting for others is named, with its last operator and line."""
    ran = ranks.run("hangs", timeout=4.0)
    assert (ran.outcome["slug"], ran.outcome["rank"]) == ("timeout", 1)
    assert "its timeout of 4 s; the last operator was aten." in ran.outcome["message"]
    assert "programs.py" in ran.outcome["message"]
    assert "c10d." in ran.outcome["notes"][-1]
    assert ran.trace.manifest["last_operator"].startswith("aten.")
    assert ran.result.seconds < 8
    assert {name for _, name in processes.descendants(ranks.server.pid)} <= {"opguard-warden"}  # it ends by itself


def test_what_is_wrong_with_the_request_is_told_once(ranks: Ranks) -> None:
    """A mistake that every rank finds is the caller's error, as with one rank."""
    with pytest.raises(UsageError, match="no 'nowhere'"):
        ranks.run("nowhere")


def test_not_in_this_process(tmp_path: Path) -> None:
    """Several ranks need processes of their own."""
    request = RunRequest("programs.py:ddp", cwd=str(HERE), output=str(tmp_path / "t"), profile="observe", ranks=2)
    with pytest.raises(UsageError, match="2 ranks"):
        client.run_in_process(request)


def test_four_ranks(ranks: Ranks) -> None:
    """Four ranks are four traces."""
    ran = ranks.run("places", ranks=4)
    assert [line.split()[:3] for line in ran.lines] == [["rank", f"{rank}:", str(rank)] for rank in range(4)]
    assert json.loads((ran.folder / "manifest.json").read_text())["ranks"] == 4
    assert len(list(ran.folder.glob("events-*.arrows"))) == 4
