"""Standard output and standard error of a verb: text in colour where it fits, or one JSON object."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Final

from opguard_ci.report.layout import Line, plain

_STYLES: Final = {
    "good": "bold green",
    "bad": "bold red",
    "warn": "yellow",
    "title": "bold",
    "mark": "bold cyan",
    "dim": "dim",
}


class Output:
    """Where a verb's report goes.

    Under ``as_json`` file descriptor 1 is standard error while the verb runs, so that nothing that a target, a library
    or a child prints can get into the one object on the real standard output.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._stdout = -1

    def __enter__(self) -> Output:
        if self._as_json:
            _flush()
            self._stdout = os.dup(1)
            os.dup2(2, 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _flush()
        if self._as_json:
            os.dup2(self._stdout, 1)
            os.close(self._stdout)

    def emit(self, document: Mapping[str, Any], lines: Iterable[Line], exit_code: int) -> int:
        """Write the report and return the exit code; a reader that has gone away changes nothing."""
        stream = sys.stderr if self._as_json or document["verdict"] == "error" else sys.stdout
        with suppress(BrokenPipeError):
            write(lines, stream)
        if self._as_json:
            with suppress(BrokenPipeError), open(self._stdout, "w", encoding="utf-8", closefd=False) as stdout:
                stdout.write(json.dumps(document) + "\n")
        return exit_code


def open_standard_streams() -> None:
    """Put /dev/null where standard input, output or error is closed: the next file opened would take its place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def wants_colour(stream: IO[str]) -> bool:
    """Tell whether colour may be sent to ``stream`` (https://no-color.org: any non-empty value of NO_COLOR says no)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def write(lines: Iterable[Line], stream: IO[str]) -> None:
    """Write ``lines`` to ``stream`` and flush it."""
    if wants_colour(stream):
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream, soft_wrap=True, highlight=False)
        for line in lines:
            console.print(Text(line.text, style=_STYLES.get(line.style, "")))
    else:
        text = plain(lines)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def _flush() -> None:
    """Flush both streams; one whose reader is gone is pointed at /dev/null, else Python complains about it at exit."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)
