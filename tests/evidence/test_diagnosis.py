"""What cures an unstable target, and how much of that may be luck."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.evidence import diagnosis
from opguard_ci.evidence.diagnosis import VARIANTS, diagnose, luck, num_again
from opguard_ci.evidence.repeats import Variant
from opguard_ci.worker.request import RunRequest
from opguard_ci.worker.servers import list_servers

SEEN = st.integers(1, 30).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))


@given(SEEN)
def test_a_rarer_fault_is_tried_more_often(seen: tuple[int, int]):
    """So that luck alone gives agreement in less than one case in twenty, or after ten more runs."""
    again = num_again(*seen)
    assert 2 <= again <= 10
    assert luck(*seen, again) < 0.05 or again == 10
    assert luck(*seen, again + 1) < luck(*seen, again)
    if seen[0] > 1:
        assert num_again(seen[0] - 1, seen[1]) >= again


TARGET = """
import torch

def train():
    return {"x": torch.rand(3)}

def broken():
    if torch.initial_seed() == 0:
        raise ValueError("no seeds here")
    return {"x": torch.rand(3)}
"""


@pytest.mark.usefixtures("own_cache")
def test_each_switch_is_tried_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What cures it, what does not, and what cannot be tried."""
    monkeypatch.setenv("OPGUARD_CACHE", str(tmp_path / "cache"))  # with servers of its own, which are counted
    (tmp_path / "target.py").write_text(TARGET)
    variants = (Variant("variable", {"OPGUARD_TRIED": "1"}), Variant("seeds", switches=("seeds",)))
    monkeypatch.setattr(diagnosis, "VARIANTS", variants)
    request = RunRequest("target.py:train", str(tmp_path), "", profile="observe")
    tried: list[str] = []
    nothing, seeds = diagnose(request, (1, 1), tmp_path / "a", tried.append)
    assert tried == ["variable", "seeds"]
    assert len([each for each in list_servers() if each["idle"]]) == 2  # nobody would ask for those of a variable again
    assert (nothing["outcome"], nothing["runs"], nothing["detail"]) == ("unstable", 2, "aten.rand.default random")
    assert (seeds["outcome"], seeds["runs"]) == ("cured", num_again(1, 1) + 1)
    assert seeds["luck"] == pytest.approx(luck(1, 1, num_again(1, 1)))
    request = RunRequest("target.py:broken", str(tmp_path), "", profile="observe")
    _, seeds = diagnose(request, (1, 1), tmp_path / "b", tried.append)
    assert seeds["outcome"] == "untestable"
    assert "no seeds here" in seeds["detail"]


def test_what_is_pinned_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the profile, or by the environment."""
    request = RunRequest("nothing.py", str(tmp_path), "", profile="strict")
    found = diagnose(request, (1, 1), tmp_path, lambda _: None)
    assert [entry["outcome"] for entry in found] == ["pinned"] * len(VARIANTS)
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    monkeypatch.setattr(diagnosis, "VARIANTS", (VARIANTS[2],))
    (entry,) = diagnose(RunRequest("nothing.py", "", "", profile="observe"), (1, 1), tmp_path, lambda _: None)
    assert (entry["outcome"], entry["detail"]) == ("pinned", "PYTHONHASHSEED is set already")
