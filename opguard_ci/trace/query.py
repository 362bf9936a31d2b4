"""Answers small questions about a large trace: reads step by step, keeps few events, says what is left."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final

from opguard_ci.errors import UsageError
from opguard_ci.trace import model
from opguard_ci.trace.model import Event, Interner, StepTable
from opguard_ci.trace.reader import Trace
from opguard_ci.trace.render import render
from opguard_ci.trace.summary import clip, summary

__all__ = ["LIMIT", "render", "show"]

LIMIT: Final = 50
"""Events in one answer, unless asked otherwise."""
_FRAMES: Final = 50
_TENSORS: Final = 100
"""Reads, and writes, of one event in an answer."""

_EVENT_FLAGS: Final = {model.RECOMPUTED: "recomputed", model.RANDOM: "random", model.HOST: "host"}
_READ_FLAGS: Final = {
    model.OVER: "over",
    model.OUTSIDE: "outside",
    model.STATE: "state",
    model.STRIDED: "strided",
    model.UNREAD: "unread",
}
_WRITE_FLAGS: Final = {model.WEAK: "weak", model.HIDDEN: "hidden", model.UNHASHED: "unhashed"}


def show(
    trace: Trace,
    *,
    events: range | None = None,
    search: str | None = None,
    tensors: bool = False,
    source: tuple[str, int] | None = None,
    limit: int = LIMIT,
    rank: int = 0,
) -> dict[str, Any]:
    """What a trace holds, as an object for ``--json``; with no question, a summary.

    Args:
        trace: an open trace.
        events: event numbers to look at.
        search: text in the operator, module, arguments, key, stack or a tensor's spec, whatever its case; or the 16 hex
            digits of a value that the event read or wrote.
        tensors: with reads, writes, generator states and the whole stack of each event.
        source: file (or the end of its path) and line that a frame of the event's stack names.
        limit: most events in the answer.
        rank: whose events.

    """
    if limit < 1:
        raise UsageError("bad-limit", f"a limit of {limit} events shows nothing; use 1 or more.")
    if events is None and search is None and source is None and not tensors:
        return summary(trace, rank)
    question = _Question(events, search, source, tensors)
    options = ["--limit", str(limit)] * (limit != LIMIT) + ["--rank", str(rank)] * (rank != 0)
    shown: list[dict[str, Any]] = []
    matches, go_on = 0, None
    for table, rows in _matching(trace, question, rank):
        for row in rows:
            if len(shown) < limit:
                shown.append(_event(table.event(row), question))
            elif go_on is None:
                go_on = table.first + row
            matches += 1
        if go_on is not None and question.is_plain:
            break  # the rest can be counted without reading it
    total = sum(info.events for info in trace.index(rank))
    if question.is_plain:
        matches = len(_overlap(question.events, 0, total))
    end = min(events.stop, total) - 1 if events is not None else total - 1
    return {
        "schema": 1,
        "verdict": "ok",
        "trace": str(trace.path),
        "rank": rank,
        "complete": trace.manifest["complete"],
        "query": {
            "events": f"{events.start}..{events.stop - 1}" if events is not None else None,
            "search": search,
            "source": f"{source[0]}:{source[1]}" if source is not None else None,
            "tensors": tensors,
        },
        "events_in_trace": total,
        "matches": matches,
        "events": shown,
        "more": matches - len(shown),
        "next": None if go_on is None else shlex.join([*question.command(trace, range(go_on, end + 1)), *options]),
    }


class _Ids:
    """Which interned strings satisfy a test; each string is tested once."""

    __slots__ = ("_seen", "_test", "ids")

    def __init__(self, test: Callable[[str], bool]) -> None:
        self._test, self._seen = test, 0
        self.ids: set[int] = set()

    def update(self, interner: Interner) -> set[int]:
        fresh = interner.strings[self._seen :]
        self.ids.update(self._seen + place for place, text in enumerate(fresh) if self._test(text))
        self._seen += len(fresh)
        return self.ids


class _Question:
    """The conditions that an event must meet."""

    def __init__(self, events: range | None, search: str | None, source: tuple[str, int] | None, tensors: bool) -> None:
        self.events, self.search, self.source, self.tensors = events, search, source, tensors
        self.is_plain = search is None and source is None
        needle = (search or "").casefold()
        self._text = {
            name: _Ids(lambda text: needle in text.casefold())
            for name in ("op", "module", "args", "key", "stack", "spec")
        }
        self._source = _Ids(lambda stack: self.frame(stack) is not None)
        hexadecimal = re.fullmatch(r"(?:0x)?([0-9a-f]{16})", needle)
        self._value = int(hexadecimal[1], 16) if hexadecimal else None

    def frame(self, stack: str) -> dict[str, Any] | None:
        """The frame to name beside an event: the one asked for, else the innermost."""
        frames = _frames(stack)
        if self.source is None:
            return next(frames, None)
        file, line = self.source
        return next((frame for frame in frames if frame["line"] == line and _same_file(frame["file"], file)), None)

    def rows(self, table: StepTable) -> Iterator[int]:
        """The matching events of a step, by row."""
        chosen: Iterator[int] = iter(_overlap(self.events, table.first, len(table)))
        if self.source is not None:
            stacks = self._source.update(table.strings.stack)
            chosen = (row for row in chosen if table.stack[row] in stacks)
        if self.search is not None:
            ids = {name: found.update(getattr(table.strings, name)) for name, found in self._text.items()}
            chosen = (row for row in chosen if self._mentions(table, row, ids))
        return chosen

    def _mentions(self, table: StepTable, row: int, ids: dict[str, set[int]]) -> bool:
        if any(getattr(table, name)[row] in ids[name] for name in ("op", "module", "args", "key", "stack")):
            return True
        reads = slice(table.read_offsets[row], table.read_offsets[row + 1])
        writes = slice(table.write_offsets[row], table.write_offsets[row + 1])
        if not ids["spec"].isdisjoint(table.read_spec[reads] + table.write_spec[writes]):
            return True
        return self._value is not None and self._value in table.read_value[reads] + table.write_value[writes]

    def command(self, trace: Trace, events: range) -> list[str]:
        """The command that asks the same of other events."""
        words = ["opguard", "show", str(trace.path), "--events", f"{events.start}..{events.stop - 1}"]
        if self.search is not None:
            words.append(f"--search={self.search}")
        if self.source is not None:
            words += ["--source", f"{self.source[0]}:{self.source[1]}"]
        if self.tensors:
            words.append("--tensors")
        return words


def _matching(trace: Trace, question: _Question, rank: int) -> Iterator[tuple[StepTable, Iterator[int]]]:
    touched = {info.step for info in trace.index(rank) if _overlap(question.events, info.first, info.events)}
    if question.is_plain and question.events is not None:
        tables = (trace.step(step, rank) for step in sorted(touched))
    else:
        tables = (table for table in trace.steps(rank) if table.step in touched)
    for table in tables:
        yield table, question.rows(table)


def _overlap(events: range | None, first: int, count: int) -> range:
    """The rows of a step, or part of a step, that lie in ``events``."""
    if events is None:
        return range(count)
    return range(max(events.start - first, 0), max(min(events.stop - first, count), 0))


def _same_file(recorded: str, asked: str) -> bool:
    """Frames name files relative to the tree; a person may name the whole path, or its end."""
    recorded, asked = os.path.normpath(recorded), os.path.normpath(asked)
    return f"/{recorded}".endswith(f"/{asked}") or f"/{asked}".endswith(f"/{recorded}")


def _frames(stack: str) -> Iterator[dict[str, Any]]:
    for text in stack.splitlines()[:_FRAMES]:
        file, _, rest = text.partition("\t")
        line, _, rest = rest.partition("\t")
        function, _, code = rest.partition("\t")
        number = int(line) if line.isascii() and line.isdigit() and len(line) < 10 else 0
        yield {"file": clip(file), "line": number, "function": clip(function), "source": clip(code.strip())}


def _event(event: Event, question: _Question) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "index": event.index,
        "step": event.step,
        "phase": event.phase,
        "lane": event.lane,
        "kind": event.kind,
        "op": clip(event.op),
        "module": clip(event.module),
        "args": clip(event.args),
        "key": clip(event.key),
        "flags": _names(event.flags, _EVENT_FLAGS),
        "frame": question.frame(event.stack or ""),
    }
    if not question.tensors:
        return answer
    answer["reads"] = [
        {
            "value": _hex(read.value),
            "spec": clip(read.spec),
            "writers": list(read.writers[:_TENSORS]),
            "flags": _names(read.flags, _READ_FLAGS),
        }
        for read in event.reads[:_TENSORS]
    ]
    answer["writes"] = [
        {
            "value": _hex(write.value),
            "spec": clip(write.spec),
            # What was written: an output, or the argument that is this read.
            "output": write.slot if write.slot >= 0 else None,
            "read": ~write.slot if write.slot < 0 else None,
            "flags": _names(write.flags, _WRITE_FLAGS),
        }
        for write in event.writes[:_TENSORS]
    ]
    answer["left_out"] = {
        "reads": max(len(event.reads) - _TENSORS, 0),
        "writes": max(len(event.writes) - _TENSORS, 0),
    }
    answer["draw"] = event.draw and {
        "generator": event.draw.generator,
        "before": _hex(event.draw.before),
        "after": _hex(event.draw.after),
    }
    answer["stack"] = list(_frames(event.stack or ""))
    return answer


def _names(flags: int, names: dict[int, str]) -> list[str]:
    return [name for bit, name in names.items() if flags & bit]


def _hex(value: int) -> str | None:
    return None if value == model.NO_VALUE else f"{value:016x}"
