"""Keeps what runs of commits left, so that no run is made twice: traces and outcomes, by all that they depend on."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opguard_ci.worker.files import bytes_on_disk, discard
from opguard_ci.worker.request import RunResult

DEFAULT_LIMIT: Final = 2 << 30
"""Bytes that kept runs may take; beyond that the least recently used go."""
_YOUNG: Final = 3600.0
"""Seconds during which a kept run is not given up: somebody may be reading it."""
_TRY_AGAIN: Final = frozenset(
    ("timeout", "killed", "crashed", "interrupted", "disk-full", "output-unwritable", "server-gone")
)
"""Ends that may be the machine's fault: the next time such a run is made anew."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A run from before."""

    trace: Path
    result: RunResult


class Runs:
    """A folder of kept runs that several processes may use at once: entries appear whole or not at all."""

    def __init__(self, folder: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        self._folder = folder
        self._limit = limit

    def find(self, key: str, environment: str) -> Kept | None:
        """The run kept under ``key`` in this environment, if it is there and whole."""
        entry = self._entry(key, environment)
        try:
            result = RunResult.from_json(json.loads((entry / "result.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        with suppress(OSError):
            os.utime(entry)
        return Kept(entry / "trace", result)

    def keep(self, key: str, environment: str, trace: Path, result: RunResult) -> None:
        """Keep a run. A cache that cannot be written is no error: the run is just not kept."""
        if result.status != "ok" and result.outcome.get("slug") in _TRY_AGAIN:
            return
        entry = self._entry(key, environment)
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=entry.parent) as scratch:
                fresh = Path(scratch) / "entry"
                fresh.mkdir()
                if trace.is_dir():
                    shutil.copytree(trace, fresh / "trace")
                (fresh / "result.json").write_text(json.dumps(result.to_json()))
                if entry.exists():
                    discard(os.fsencode(entry))
                fresh.rename(entry)
            self._trim()
        except OSError:
            return

    def _entry(self, key: str, environment: str) -> Path:
        return self._folder / key[:2] / f"{key[2:]}-{environment}"

    def _trim(self) -> None:
        sizes = [(entry.stat().st_mtime, bytes_on_disk(os.fsencode(entry)), entry) for entry in self._entries()]
        total = sum(size for _, size, _ in sizes)
        for used, size, entry in sorted(sizes):
            if total <= self._limit or time.time() - used < _YOUNG:
                return
            discard(os.fsencode(entry))
            total -= size

    def _entries(self) -> Iterator[Path]:
        for group in self._folder.iterdir():
            for entry in group.iterdir():
                if not entry.name.startswith("."):
                    yield entry
