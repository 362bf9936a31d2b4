"""Reproducers are really run, with nothing but torch on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.evidence import reproducer
from opguard_ci.evidence.kept import Kept
from opguard_ci.evidence.reproducer import NoReproducerError, _overlaps, write_reproducer
from tests.capture.running import Programs
from tests.evidence.test_zoom import Pair


def written(pair: Pair) -> Path:
    kept = pair.zoom()
    folder = pair.programs.folder / "repro"
    write_reproducer(folder, kept.calls, pair.document)
    return folder


def repeated(folder: Path) -> str:
    """What the script prints, run where opguard_ci cannot be imported."""
    source = "import sys; sys.modules.update(opguard_ci=None, safetensors=None, numpy=None); import runpy; "
    source += f"runpy.run_path({str(folder / 'repro.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, cwd=os.sep,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_argument_in_place_strided_and_expanded(programs: Programs) -> None:
    """Both calls are made on the recorded tensors, in their strides, and give the recorded bits."""
    folder = written(
        Pair(
            programs,
            """
def work(x, alpha):
    return x.t().contiguous().t().add_(torch.randn(1, 4).expand(3, 4), alpha=alpha)
def good(mark):
    train(lambda x, step: work(x, 1), mark)
def bad(mark):
    train(lambda x, step: work(x, 1.25 if step else 1), mark)
""",
        )
    )
    text = repeated(folder)
    assert "written 0: float32[3, 4]\n  recorded, reference and candidate: 12 of 12 elements differ" in text
    assert text.count("call here, and recorded: equal, bit by bit") == 2
    assert sorted(file.name for file in folder.iterdir()) == [
        "candidate-after.safetensors", "candidate-before.safetensors",
        "reference-after.safetensors", "reference-before.safetensors", "repro.py",
    ]  # fmt: skip


def test_a_draw_starts_from_the_recorded_state(programs: Programs) -> None:
    """Of the default generator, and what it draws is what was recorded."""
    folder = written(
        Pair(
            programs,
            """
def good(mark):
    train(lambda x, step: F.dropout(x, 0.5), mark)
def bad(mark):
    train(lambda x, step: F.dropout(x, 0.25), mark)
""",
        )
    )
    text = repeated(folder)
    assert "elements differ" in text
    assert text.count("equal, bit by bit") >= 2


def test_each_call_has_its_own_threads(programs: Programs) -> None:
    """Where the number of threads made the difference, both calls give what was recorded."""
    folder = written(
        Pair(
            programs,
            """
def work(x, threads):
    torch.set_num_threads(threads)
    found = [(torch.arange(300001.0) * 100 * k).square().sum() for k in (1.1, 2.3, 3.7, 5.9)]
    torch.set_num_threads(1)
    return x * torch.stack(found).mean() * 1e-18
def good(mark):
    train(lambda x, step: work(x, 1), mark)
def bad(mark):
    train(lambda x, step: work(x, 3), mark)
""",
        )
    )
    text = repeated(folder)
    assert "1 and 3 threads" in text
    assert "recorded, reference and candidate: 1 of 1 elements differ" in text
    assert text.count("call here, and recorded: equal, bit by bit") == 2


def test_one_side_alone(programs: Programs) -> None:
    """An operator that the reference lacks is repeated by itself."""
    folder = written(
        Pair(
            programs,
            """
def good(mark):
    train(lambda x, step: x, mark)
def bad(mark):
    train(lambda x, step: torch.cat([x, x.flip(0)])[:3].tanh() if step == 1 else x, mark)
""",
        )
    )
    text = repeated(folder)
    assert "the candidate's call here, and recorded: equal, bit by bit" in text
    assert "reference" not in text


def entry(**changes: Any) -> dict[str, Any]:
    tensor = {"file": "0-before.safetensors", "dtype": "float32", "shape": [2, 2], "stride": [2, 1]}
    base = {"op": "aten.relu.default", "tensors": {"input 0": tensor}, "problems": {}, "args": [], "kwargs": {}}
    return {**base, **changes}


@pytest.mark.parametrize(("changes", "reason"), [
    ({"op": "mylib.fused.default"}, "mylib.fused.default is no operator of torch itself"),
    ({"op": "inductor.forward"}, "no operator of torch itself"),
    ({"problems": {"input 0": "its layout is sparse_coo"}}, "input 0 of the candidate's .* its layout is sparse_coo"),
    ({"args": [[{"object": "ScriptObject"}]]}, "was given a ScriptObject"),
    ({"tensors": {"input 0": {"shape": [2, 2], "stride": [1, 1], "file": "f"}}}, "overlap in memory"),
])  # fmt: skip
def test_what_cannot_be_saved_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """With the reason, and nothing is written."""
    with pytest.raises(NoReproducerError, match=reason):
        write_reproducer(tmp_path / "repro", {"candidate": Kept(tmp_path, entry(**changes))}, {})
    with pytest.raises(NoReproducerError, match="no operator behind"):
        write_reproducer(tmp_path / "repro", {}, {})
    assert not (tmp_path / "repro").exists()


def test_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody attaches that to a report."""
    (tmp_path / "0-before.safetensors").write_bytes(bytes(100))
    monkeypatch.setattr(reproducer, "MAX_BYTES", 99)
    with pytest.raises(NoReproducerError, match="100 bytes, more than 99"):
        write_reproducer(tmp_path / "repro", {"candidate": Kept(tmp_path, entry())}, {})


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 7)), max_size=3))
def test_overlap_is_two_elements_in_one_place(axes: list[tuple[int, int]]) -> None:
    """Where strides say that none do, none do; expanded axes aside."""
    shape, stride = [n for n, _ in axes], [s for _, s in axes]
    places = [0]
    for length, step in axes:
        places = [place + n * step for place in places for n in range(length if step else 1)]
    if len(set(places)) < len(places):
        assert _overlaps(shape, stride)
