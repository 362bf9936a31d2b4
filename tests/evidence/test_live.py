"""Where a debugger stops, and where it cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opguard_ci.config import Config
from opguard_ci.evidence import live
from opguard_ci.worker.places import Job
from opguard_ci.worker.request import RunRequest


class Runs:
    """Stands for a project's runs; nothing is run."""

    entry = "somewhere:execute"
    config = Config()

    def request(self, job: Job) -> RunRequest:
        return RunRequest(job.target, job.cwd, "out", profile="strict")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The plans of the debuggers that would be started."""
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(live, "_run_live", lambda request, plan, entry: plans.append(plan))
    return plans


def stopped(document: dict[str, Any]) -> list[str]:
    found = {"first_divergence": None, "notes": [], **document}
    runs: Any = Runs()
    live.stop_checked(runs, Job("train.py:tiny", "/"), found)
    notes: list[str] = found["notes"]
    return notes


def test_a_check_whose_target_raised_stops_there(started: list[dict[str, Any]]) -> None:
    """Of the working tree; a reference that cannot be run has no place in it."""
    error = {"side": "candidate", "slug": "target-raised"}
    assert stopped({"verdict": "untestable", "error": error}) == []
    (plan,) = started
    assert plan == {"calls": [], "live": {"op": "", "said": "train.py:tiny raised"}}
    (note,) = stopped({"verdict": "untestable", "error": {**error, "side": "reference"}})
    assert note == "No debugger was started: what is untestable departs nowhere." and len(started) == 1


def test_what_passes_is_not_stopped(started: list[dict[str, Any]]) -> None:
    """And needs no words; what does not repeat itself has no such place."""
    assert stopped({"verdict": "identical"}) == stopped({"verdict": "equivalent"}) == []
    assert "unstable departs nowhere" in stopped({"verdict": "unstable"})[0]
    assert started == []


def test_no_call_to_stop_at(started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate leaves out what the reference does: a note says so."""
    recorded = SimpleNamespace(manifest={"ranks": 1, "level": "full"})
    monkeypatch.setattr(live, "read_trace", lambda path: recorded)
    monkeypatch.setattr(live, "require_terminal", lambda ranks: None)
    first = {"events": {"reference": 3, "candidate": None}, "cause": "missing", "detail": "gone"}
    notes = stopped({"verdict": "diverged", "first_divergence": first, "candidate": {"trace": "t"}})
    assert notes == ["There is no call before which a debugger could stop (missing)."] and started == []


def test_several_ranks_are_refused() -> None:
    """Which of the processes should stop is open."""
    with pytest.raises(live.UsageError, match="3 ranks"):
        live.require_terminal(3)
