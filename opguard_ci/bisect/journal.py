"""The journal of a search: one JSON line per probe, safe against kill -9, and its export for ``git bisect replay``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from opguard_ci.bisect.graph import Graph
from opguard_ci.bisect.search import Outcome, State
from opguard_ci.errors import UsageError
from opguard_ci.worker.cache import cache_folder

VERSION = 1
WORDS = {"good": "another good commit", "bad": "another bad commit", "target": "another target",
         "recipe": "another version of the recipe", "profile": "another profile", "mode": "another kind of search",
         "environment": "another environment"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Search:
    """What a journal is about: classes may be taken from it only by the very same search.

    ``good`` and ``bad`` are full hashes; ``recipe`` is the digest of all that defines the run beside the commit (pins,
    paths, level); ``environment`` is the environment key.
    """

    good: str
    bad: str
    target: str
    recipe: str = ""
    profile: str = ""
    mode: str = "first"
    environment: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """One commit that was tried: its class, or None and the reason why it cannot be tested."""

    commit: str
    label: str | None
    reason: str = ""
    seconds: float = 0.0
    cached: bool = False


class Journal:
    """A journal open for adding probes. Use it as a context manager; every line is on the disk when `add` returns."""

    def __init__(self, path: Path, search: Search, *, resume: bool = False) -> None:
        """Begin a journal at ``path``, or go on with the one there.

        ``probes`` holds what an earlier search left. Raises UsageError: ``journal-exists`` (without ``resume``),
        ``journal-mismatch``, ``journal-damaged``, ``journal-unwritable``.
        """
        self.path = path
        self.probes: list[Probe] = []
        end = 0
        if path.exists() and path.stat().st_size:
            if not resume:
                raise UsageError(
                    "journal-exists", f"{path} holds an earlier search; go on with --resume, or remove it first."
                )
            found, self.probes, end = _read(path)
            _require_same(path, found, search)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            self._file.truncate(end)  # a line torn by a crash goes, or the next one would be glued to it
        except OSError as error:
            raise UsageError("journal-unwritable", f"The journal {path} cannot be written: {error}.") from error
        if not end:
            self._append({"journal": VERSION, **asdict(search)})

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def add(self, probe: Probe) -> None:
        """Record a probe."""
        self._append(asdict(probe))
        self.probes.append(probe)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def place_of(search: Search, repository: str) -> Path:
    """Where the cache keeps the journal of a search of the repository with this identity."""
    ends = json.dumps([search.good, search.bad, search.target, search.mode]).encode()
    return cache_folder() / "bisect" / repository / f"{hashlib.sha256(ends).hexdigest()[:20]}.jsonl"


def read_journal(path: Path) -> tuple[Search, list[Probe]]:
    """What a journal holds, without its torn last line if there is one.

    Raises UsageError: ``journal-not-found``, ``journal-damaged``.
    """
    search, probes, _ = _read(path)
    return search, probes


def replayed(graph: Graph, search: Search, probes: list[Probe]) -> State:
    """The search where the journal leaves it; probes of commits that the graph does not hold change nothing."""
    state = State(graph, search.mode)  # type: ignore[arg-type]  # the mode was checked when it was read
    for probe in probes:
        state = state.advance(probe.commit, probe.label)
    return state


def git_bisect_log(graph: Graph, known: Mapping[str, str | None], outcome: Outcome, subjects: Mapping[str, str]) -> str:
    """The text of ``git bisect log`` for a finished search: ``git bisect replay`` comes to the same answer.

    A class that is not good's counts as bad. Good commits that contain the answer (a change that was taken back later)
    are left out, with a remark: git refuses to work with them.
    """
    if not outcome.candidates:
        raise UsageError("nothing-to-export", "The search named no commit, so there is no bisection to write down.")
    suspect, wanted = outcome.candidates[-1], known[graph.good]
    lines = [_remark("bad", graph.bad, subjects), _remark("good", graph.good, subjects),
             f"git bisect start '{graph.bad}' '{graph.good}'"]  # fmt: skip
    below, inside = graph.ancestors([suspect]), set(graph.parents)
    # Descendants first: for git the bad commit is the one that was called so last.
    for commit in sorted(known, key=lambda commit: -graph.order.get(commit, -1)):
        if commit in (graph.good, graph.bad):
            continue
        label = known[commit]
        word = "skip" if label is None else "good" if label == wanted else "bad"
        contains = suspect in graph.ancestors([commit])
        if (word == "good" and contains) or (word == "bad" and not contains) or (
            word == "bad" and commit not in inside
        ):  # fmt: skip
            lines.append(_remark(f"left out, {word}", commit, subjects))
            continue
        if word == "skip" and commit not in below:
            continue
        lines += [_remark(word, commit, subjects), f"git bisect {word} {commit}"]
    if outcome.first_bad:
        lines.append(_remark("first bad commit", outcome.first_bad, subjects))
    else:
        lines.append("# only skipped commits left to test")
        lines += [_remark("possible first bad commit", commit, subjects) for commit in outcome.candidates]
    return "\n".join(lines) + "\n"


def _remark(word: str, commit: str, subjects: Mapping[str, str]) -> str:
    """A comment line; git takes a line for a command wherever "git bisect" stands in it, in comments too."""
    subject = " ".join(subjects.get(commit, "").split())
    for command in ("git bisect", "git-bisect"):
        subject = subject.replace(command, "git_bisect")
    return f"# {word}: [{commit}] {subject}".rstrip()


def _read(path: Path) -> tuple[Search, list[Probe], int]:
    """Header, probes, and where the last whole line ends."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError("journal-not-found", f"The journal {path} cannot be read: {error}.") from error
    end = data.rfind(b"\n") + 1
    records = list(_records(path, data[:end]))
    if not records:
        return Search("", "", ""), [], 0
    header = records[0]
    if header.pop("journal", None) != VERSION:
        raise UsageError("journal-damaged", f"{path} is no journal of a bisection that this version can read.")
    search = _build(path, 1, Search, header)
    if search.mode not in ("first", "all", "exhaustive"):
        raise UsageError("journal-damaged", f"{path} tells of an unknown kind of search, {search.mode!r}.")
    return search, [_build(path, number, Probe, record) for number, record in enumerate(records[1:], 2)], end


def _records(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(data.splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise UsageError("journal-damaged", f"Line {number} of the journal {path} is no JSON object; remove it.")
        yield record


def _build(path: Path, number: int, kind: type[Any], record: dict[str, Any]) -> Any:
    types: dict[str, tuple[type, ...]] = {"label": (str, type(None)), "seconds": (int, float), "cached": (bool,)}
    known = {item.name for item in fields(kind)}
    if set(record) - known or any(not isinstance(v, types.get(k, (str,))) for k, v in record.items()):
        raise UsageError("journal-damaged", f"Line {number} of the journal {path} holds unknown or wrong fields.")
    try:
        return kind(**record)
    except TypeError as error:
        raise UsageError("journal-damaged", f"Line {number} of the journal {path} lacks a field: {error}.") from error


def _require_same(path: Path, found: Search, wanted: Search) -> None:
    for name, words in WORDS.items():
        old, new = getattr(found, name), getattr(wanted, name)
        if found.good and old != new:
            raise UsageError(
                "journal-mismatch",
                f"{path} belongs to {words} ({old or 'none'}, not {new or 'none'}); use another journal, or remove it.",
            )
