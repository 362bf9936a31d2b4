"""One clean tree per commit, written from git objects into a folder that is used again.

Only what differs from the commit before is written. What a run changed, added or removed is found by comparing every
file's lstat with what it was after writing (and its bytes, where a clock tick could hide a change), and is put right.
Raw blobs as git stores them: no line-ending conversion, filters or export attributes. A submodule is laid out if the
checkout has its commit, else it is an empty folder; LFS pointers stay pointers; both are named in `Checkout.notes`. A
symbolic link that points out of the tree is written as it is, because projects do link to data folders, but is never
followed here, and is named too.
"""

# Why: paths are bytes, as git stores them; pathlib knows only text.
# ruff: noqa: PTH102, PTH112, PTH114, PTH115, PTH211
from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from opguard_ci.errors import UsageError
from opguard_ci.worker.cache import cache_folder
from opguard_ci.worker.files import discard, read, walk
from opguard_ci.worker.git import Repository
from opguard_ci.worker.layout import (
    EXECUTABLE,
    FILE,
    LFS_POINTER,
    SUBMODULE,
    SYMLINK,
    Item,
    Layout,
    Overlay,
    arrange,
    blob_id,
    leaves_tree,
    with_submodules,
)
from opguard_ci.worker.pool import DEFAULT_LIMIT, Pool

STATE_VERSION = 1
TICK_NS = 20_000_000
"""File times advance in clock ticks (at most 10 ms); a change this soon after writing may leave them as they were."""


class Seen(NamedTuple):
    """A file as it was left: git mode, id, lstat signature, whether a tick may hide a change, LFS pointer, outward."""

    mode: int
    id: str
    signature: tuple[int, ...]
    racy: bool
    lfs: bool
    outward: bool


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit's tree on disk.

    ``files`` maps each regular file's path below ``path`` to the blob id of the bytes written, pins included.
    ``written`` and ``removed`` count what had to be touched. ``built`` names kept files that a build made.
    """

    path: Path
    commit: str
    files: Mapping[str, str]
    pinned: frozenset[str]
    linked: frozenset[str]
    built: frozenset[str]
    written: int
    removed: int
    notes: tuple[str, ...]


class Tree:
    """A locked folder of the cache that holds one commit at a time. Use it as a context manager."""

    def __init__(self, repository: Repository, *, cache: Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        """Take a free folder below ``cache``; what an interrupted process left in it is thrown away.

        ``limit``: bytes that all the trees of the cache may take once nobody uses them.
        """
        self.repository = repository
        self._pool = Pool((cache if cache is not None else cache_folder()) / "trees", limit=limit)
        slot = self._pool.take(repository.identity)
        self.path = slot.folder / "tree"
        self._slot = slot
        self._root = os.fsencode(self.path)
        self._state = slot.folder / "state.json"
        self._seen: dict[bytes, Seen] = {}
        self._built: dict[bytes, tuple[int, ...]] = {}
        self._holds: tuple[object, ...] = ()
        if not self._load():
            discard(self._root)
        # From here to `close` the folder and the record may disagree: without a record, the next user starts afresh.
        self._state.unlink(missing_ok=True)
        self.path.mkdir(exist_ok=True)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def checkout(self, commit: str, overlay: Overlay | None = None) -> Checkout:
        """Make the folder hold exactly the tree of ``commit`` (a full hash) under ``overlay``.

        Raises UntestableError ``unsafe-tree``, UsageError ``missing-object``, ``bad-overlay``, ``cache-unwritable``.
        """
        overlay = overlay or Overlay()
        layout = arrange(self.repository.entries(commit), overlay, self.repository.object_format)
        layout = with_submodules(layout, self.repository.submodules.entries)
        holds = (
            self.repository.tree(commit),
            frozenset((p, i.id) for p, i in layout.items.items() if i.data is not None),
            frozenset(overlay.changes.items()),
        )
        if holds != self._holds:
            self._built = {}
        try:
            removed = self._sweep(layout)
            written = self._write(layout)
        except OSError as error:
            raise UsageError(
                "cache-unwritable",
                f"The tree of {commit[:12]} cannot be written below {self.path} ({error}); "
                "free some space there or point OPGUARD_CACHE to another folder.",
            ) from error
        self._holds = holds
        self._mark_racy()
        files = {os.fsdecode(path): item.id for path, item in layout.items.items() if item.mode in (FILE, EXECUTABLE)}
        built = frozenset(map(os.fsdecode, self._built))
        return Checkout(self.path, commit, files, layout.pinned, layout.linked, built, written, removed,
                        self._notes(layout))  # fmt: skip

    def adopt(self) -> frozenset[str]:
        """Keep all that now lies in the tree beside the commit's files: what a build just made.

        It stays for as long as the same commit is checked out with the same overlay and none of it is changed.
        """
        self._built = {
            path: _signature(found) for path, found in walk(self._root) if path not in self._seen and
            not stat.S_ISDIR(found.st_mode)
        }  # fmt: skip
        return frozenset(map(os.fsdecode, self._built))

    def close(self) -> None:
        """Write the record of what the folder holds and let go of the lock."""
        if self._slot.is_locked:
            self._save()
            self._slot.release()
            self._pool.trim()

    def _sweep(self, layout: Layout) -> int:
        """Remove all that is not wanted or not as it was left; afterwards ``self._seen`` is what may stay."""
        if not os.path.isdir(self._root) or os.path.islink(self._root):
            discard(self._root)
            os.mkdir(self._root)
        found = dict(walk(self._root))
        kept: dict[bytes, Seen] = {}
        if any(path not in found or _signature(found[path]) != old for path, old in self._built.items()):
            self._built = {}
        folders = {parent for path in (*layout.items, *self._built) for parent in _parents(path)}
        removed = 0
        for path, status in sorted(found.items(), reverse=True):  # what is in a folder before the folder
            item = layout.items.get(path)
            if stat.S_ISDIR(status.st_mode):
                if path in folders or (item is not None and item.mode == SUBMODULE):
                    continue
            elif path in self._built or (item is not None and self._is_intact(path, item, status)):
                if path in self._seen:
                    kept[path] = self._seen[path]
                continue
            discard(self._full(path))
            removed += 1
        self._seen = kept
        return removed

    def _is_intact(self, path: bytes, item: Item, status: os.stat_result) -> bool:
        seen = self._seen.get(path)
        if seen is None or seen.mode != item.mode or seen.id != item.id or seen.signature != _signature(status):
            return False
        if not seen.racy:
            return True
        full = self._full(path)
        data = os.readlink(full) if item.mode == SYMLINK else read(full)
        return blob_id(data, self.repository.object_format) == item.id

    def _write(self, layout: Layout) -> int:
        """Write what is missing. Files are always made anew, never opened, so nothing is written through a link."""
        missing = {path: item for path, item in layout.items.items() if path not in self._seen}
        for folder in sorted({parent for path in missing for parent in _parents(path)}):
            with suppress(FileExistsError):
                os.mkdir(self._full(folder))
        wanted = {item.id for item in missing.values() if item.data is None and item.mode != SUBMODULE}
        data = dict(self.repository.blobs(sorted(wanted)))
        for id_, content in data.items():
            if blob_id(content, self.repository.object_format) != id_:
                raise self.repository.missing_error(id_, "its bytes do not have its name")
        written = 0
        for path, item in missing.items():
            if item.mode == SUBMODULE:
                with suppress(FileExistsError):
                    os.mkdir(self._full(path))
                continue
            content = data[item.id] if item.data is None else item.data
            self._seen[path] = self._put(path, item, content)
            written += 1
        return written

    def _put(self, path: bytes, item: Item, content: bytes) -> Seen:
        full = self._full(path)
        if item.mode == SYMLINK:
            os.symlink(content, full)
            status = os.lstat(full)
            return Seen(item.mode, item.id, _signature(status), True, False, leaves_tree(path, content))
        handle = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o755 if item.mode == EXECUTABLE else 0o644)
            view = memoryview(content)
            while view:
                view = view[os.write(handle, view) :]
            status = os.fstat(handle)
        finally:
            os.close(handle)
        return Seen(item.mode, item.id, _signature(status), True, content.startswith(LFS_POINTER), False)

    def _mark_racy(self) -> None:
        now = time.time_ns()
        for path, seen in self._seen.items():
            if seen.racy:
                self._seen[path] = seen._replace(racy=now - seen.signature[3] < TICK_NS)

    def _notes(self, layout: Layout) -> tuple[str, ...]:
        def named(paths: list[bytes]) -> str:
            shown = ", ".join(ascii(os.fsdecode(path))[1:-1] for path in sorted(paths)[:5])
            return shown + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")

        submodules = [path for path, item in layout.items.items() if item.mode == SUBMODULE]
        pointers = [path for path, seen in self._seen.items() if seen.lfs]
        outward = [p for p, seen in self._seen.items() if seen.outward and os.fsdecode(p) not in layout.linked]
        shadowed = [os.fsencode(name) for name in layout.shadowed_links]
        told = (
            (
                submodules,
                "submodules that the checkout lacks (git submodule update --init) are empty folders in this tree: {}",
            ),
            (pointers, "Git LFS pointers stand for the files they name: {}"),
            (outward, "links point out of the tree, and what lies there is not the commit's: {}"),
            (shadowed, "links were not laid because the commit has these paths itself: {}"),
        )
        return tuple(text.format(named(paths)) for paths, text in told if paths)

    def _full(self, path: bytes) -> bytes:
        return self._root + b"/" + path

    def _load(self) -> bool:
        """Read the record of an orderly end; False when there is none, or none that this version understands."""
        try:
            record = json.loads(self._state.read_bytes())
            if record["version"] != STATE_VERSION or record["objects"] != self.repository.object_format:
                return False
            self._seen = {
                os.fsencode(path): Seen(mode, id_, tuple(signature), racy, lfs, outward)
                for path, (mode, id_, signature, racy, lfs, outward) in record["files"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        return True

    def _save(self) -> None:
        record = {
            "version": STATE_VERSION,
            "objects": self.repository.object_format,
            "files": {os.fsdecode(path): seen for path, seen in self._seen.items()},
        }
        beside = self._state.with_suffix(".new")
        beside.write_text(json.dumps(record), encoding="ascii")
        beside.replace(self._state)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file does: a change sets ctime, which no program can set back."""
    return (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _parents(path: bytes) -> Iterator[bytes]:
    at = path.rfind(b"/")
    while at > 0:
        yield path[:at]
        at = path.rfind(b"/", 0, at)
