"""Golden traces: ``golden/<recipe id>/<environment key>.json``, and the events they name in ``golden/objects``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from opguard_ci.errors import IncomparableError, UsageError
from opguard_ci.trace.files import MANIFEST
from opguard_ci.trace.reader import Trace, read_trace
from opguard_ci.trace.writer import manifest_text

MAX_COMMITTED: Final = 256 << 10
"""Bytes of the largest event file that is kept in the repository; larger ones lie elsewhere."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NOT_NUMERICS: Final = ("operators", "data")


@dataclass(frozen=True, slots=True)
class Blessing:
    """That somebody made a golden: who, when (UTC, ISO 8601), why, of which commit, and the digests old -> new.

    ``code`` is the digest of the commit's tree without the goldens, by which a commit is found again that was rebased.
    """

    who: str
    when: str
    why: str
    commit: str
    code: str
    new: str
    old: str | None = None


class Golden:
    """One golden as it stands in its folder; ``blessings`` are all that led to it, the newest last."""

    def __init__(self, path: Path, trace: Trace) -> None:
        self.path = path
        self.trace = trace
        self.blessings: tuple[Blessing, ...] = _blessings(trace.manifest, path)

    @property
    def key(self) -> str:
        """The environment key under which it was recorded."""
        return str(self.trace.manifest["environment"]["key"])

    @property
    def latest(self) -> Blessing:
        """The blessing that it stands by."""
        return self.blessings[-1]


class Goldens:
    """A folder of goldens. ``objects``: folders beside its own in which events may lie; large ones go to the first."""

    def __init__(self, folder: Path, objects: Sequence[Path]) -> None:
        self.folder = folder
        self._elsewhere = tuple(objects)

    def keys(self, recipe: str) -> list[str]:
        """The environment keys that a recipe has goldens for."""
        return sorted(file.stem for file in (self.folder / recipe).glob("*.json"))

    def find(self, recipe: str, key: str) -> Golden | None:
        """The golden of a recipe in an environment.

        Raises ``UsageError`` if it is damaged, ``IncomparableError`` if another version of opguard_ci wrote it.
        """
        path = self.path(recipe, key)
        if not os.path.lexists(path):
            return None
        return Golden(path, read_trace(path, objects=self._elsewhere))

    def of(self, recipe: str) -> list[Golden]:
        """All goldens of a recipe that this version can read, the newest first."""
        found = []
        for key in self.keys(recipe):
            try:
                golden = self.find(recipe, key)
            except IncomparableError:
                continue  # it stays for the version that wrote it
            if golden is not None:
                found.append(golden)
        return sorted(found, key=lambda golden: golden.latest.when, reverse=True)

    def write(self, recipe: str, trace: Path, blessing: Blessing, facts: Mapping[str, Any]) -> Golden:
        """Keep a trace folder as the golden of its environment; what was there before lives on in ``history``.

        ``facts``: keys of the manifest that the recorder could not know, such as the tree.
        """
        manifest = json.loads((trace / MANIFEST).read_bytes())
        key = str(manifest["environment"]["key"])
        before = self.find(recipe, key)
        history = [asdict(each) for each in before.blessings] if before is not None else []
        for name, entry in manifest["objects"].items():
            self._keep(trace / name, str(entry["sha256"]), int(entry["bytes"]))
        latest = asdict(blessing)
        document = {"schema": manifest["schema"], "recipe": recipe, **latest, **manifest, **facts, "history": history}
        document |= {"commit": blessing.commit}
        path = self.path(recipe, key)
        _write(path, manifest_text(document).encode())
        return Golden(path, read_trace(path, objects=self._elsewhere))

    def prunable(self, live: Collection[str] | None, keys: Collection[str]) -> list[tuple[Path, str]]:
        """Files that may go, each with the reason: goldens of recipes not in ``live`` (None: all live), goldens of
        these environment ``keys``, and events in the repository that no golden that stays names.

        Raises ``IncomparableError`` while a golden of another version lies here: what it names is not known.
        """
        found: list[tuple[Path, str]] = []
        named: set[str] = set()
        for file in sorted(self.folder.glob("*/*.json")):
            manifest = read_trace(file).manifest
            if live is not None and file.parent.name not in live:
                found.append((file, "no configured recipe has this id"))
            elif file.stem in keys:
                found.append((file, "of the environment given"))
            else:
                named |= {str(entry["sha256"]) for entry in manifest["objects"].values()}
        for file in sorted((self.folder / "objects").glob("*")):
            if _SHA256.fullmatch(file.name) and file.name not in named:
                found.append((file, "no golden names it"))
        return found

    def remove(self, files: Collection[Path]) -> None:
        """Delete files that ``prunable`` named, and folders that this leaves empty."""
        for file in files:
            file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                file.parent.rmdir()

    def path(self, recipe: str, key: str) -> Path:
        """Where the golden of a recipe in an environment lies."""
        return self.folder / recipe / f"{key}.json"

    def _keep(self, file: Path, sha256: str, size: int) -> None:
        place = self.folder / "objects" if size <= MAX_COMMITTED else self._elsewhere[0]
        if not (place / sha256).exists():
            _write(place / sha256, file.read_bytes())


def numerics_digest(manifest: Mapping[str, Any]) -> str:
    """What a golden promises, in 32 hex digits: every section of the contract in every step, not how it came about."""
    steps = [
        [entry["step"], {name: value for name, value in entry["digests"].items() if name not in _NOT_NUMERICS}]
        for entry in manifest["steps"]
    ]
    return hashlib.sha256(json.dumps(steps, sort_keys=True).encode()).hexdigest()[:32]


def _blessings(manifest: Mapping[str, Any], path: Path) -> tuple[Blessing, ...]:
    history = manifest.get("history", [])
    if not isinstance(history, list):
        history = []
    return tuple(_blessing(entry, path) for entry in (*history, manifest))


def _blessing(entry: object, path: Path) -> Blessing:
    """A blessing that somebody may have edited by hand."""
    if isinstance(entry, Mapping):
        values: dict[str, Any] = {item.name: entry.get(item.name) for item in fields(Blessing)}
        if all(isinstance(value, str) or (name == "old" and value is None) for name, value in values.items()):
            return Blessing(**values)
    raise UsageError(
        "not-a-golden", f"{path} does not say who blessed it, when and why; record it with `opguard bless`."
    )


def _write(path: Path, data: bytes) -> None:
    """Put a file in its place whole."""
    beside = path.with_name(f".new-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise UsageError(
            "golden-unwritable", f"The golden {path} cannot be written: {error.strerror or error}."
        ) from error
