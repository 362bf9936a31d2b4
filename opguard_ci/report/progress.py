"""A progress bar for verbs that run a target several times; on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from opguard_ci.report.clean import clean

Item = TypeVar("Item")


def progress(items: Iterable[Item], total: int, description: str) -> Iterator[Item]:
    """Pass ``items`` on; show how many of ``total`` are done on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    yield from track(items, escape(clean(description)), total=total, console=Console(stderr=True), transient=True)


@contextmanager
def steps_shown() -> Iterator[Callable[[str], None]]:
    """Hand out a function that shows what is being done, one sentence at a time; on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as status:
        yield lambda sentence: status.update(escape(clean(sentence)))
