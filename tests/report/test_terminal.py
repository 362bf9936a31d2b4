from __future__ import annotations

import io

import pytest

from opguard_ci.report.layout import Line
from opguard_ci.report.terminal import wants_colour, write


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_colour_on_a_terminal() -> None:
    """On a terminal a line gets the colour of what it is, and nothing else changes."""
    stream = Terminal()
    write([Line("diverged", "bad"), Line("plain [bold]x[/bold]")], stream)
    assert "\x1b[1;31mdiverged\x1b[0m\n" in stream.getvalue()
    assert "plain [bold]x[/bold]\n" in stream.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_none_is_wanted(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR and a terminal that cannot are respected."""
    monkeypatch.setenv(name, value)
    stream = Terminal()
    write([Line("diverged", "bad")], stream)
    assert stream.getvalue() == "diverged\n"


def test_empty_no_color_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a value that is not empty counts, as no-color.org has it."""
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_colour(Terminal())


def test_stream_of_few_letters() -> None:
    """A stream that cannot show a letter gets a question mark, and no exception."""
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, encoding="ascii")
    write([Line("größe …")], stream)
    assert data.getvalue() == b"gr??e ?\n"


def test_long_lines_are_left_whole_on_a_terminal() -> None:
    """Commands are not wrapped, so that they can be copied."""
    stream = Terminal()
    write([Line("opguard show " + "x" * 300)], stream)
    assert stream.getvalue().count("\n") == 1
