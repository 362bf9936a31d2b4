from __future__ import annotations

import sys

import pytest

from opguard_ci.report.progress import progress
from tests.report.test_terminal import Terminal


def test_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs of CI get no bar."""
    assert list(progress([1, 2], 2, "runs")) == [1, 2]
    assert capsys.readouterr() == ("", "")


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the bar is shown on standard error, with its description."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert list(progress([1, 2], 2, "a.py:[f]")) == [1, 2]
    assert "a.py:[f]" in stream.getvalue()
