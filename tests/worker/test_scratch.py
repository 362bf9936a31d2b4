"""Temporary folders go with their process, or with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from opguard_ci.worker.scratch import Scratch


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> Path:
    os.utime(folder, (1e9, 1e9))
    return folder


def test_it_goes_when_it_is_closed_or_forgotten(temp: Path) -> None:
    """With all that was written into it."""
    with Scratch() as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
    forgotten = Scratch()
    assert forgotten.path.exists()
    del forgotten
    assert list(temp.iterdir()) == []


def test_what_a_killed_process_left_is_cleared(temp: Path) -> None:
    """Folders in use, of a process that is just starting, and of others, stay."""
    code = f"import tempfile; tempfile.tempdir = {str(temp)!r}\n"
    code += "from opguard_ci.worker.scratch import Scratch; s = Scratch(); print(s.path, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as process:
        assert process.stdout is not None
        left = aged(Path(process.stdout.readline().strip()))
        mine, other, starting = Scratch(), temp / "opguard-scratch-x", temp / "opguard-scratch-y"
        other.symlink_to(temp)
        starting.mkdir()
        aged(mine.path)
        with Scratch():
            assert left.exists()
        process.send_signal(signal.SIGKILL)
    with Scratch() as last:
        assert set(temp.iterdir()) == {mine.path, other, starting, last}
    aged(starting)
    with Scratch():
        assert not starting.exists()
