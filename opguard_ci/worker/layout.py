"""What a commit's tree should hold on disk: checked paths, overlays, and what such a tree cannot hold."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from opguard_ci.errors import UntestableError, UsageError
from opguard_ci.worker.objects import Entry

FILE, EXECUTABLE, SYMLINK, SUBMODULE = 0o100644, 0o100755, 0o120000, 0o160000
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class Item(NamedTuple):
    """What lies at a path: a git mode, the blob's id, and its bytes where they do not come from the repository."""

    mode: int
    id: str
    data: bytes | None = None


Changes = Mapping[bytes, Item | None]
"""What lies at a path instead of what the commit has there; None: nothing."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """What is laid over a commit's tree.

    ``changes``: path as git stores it -> what lies there instead. ``pins``: path below the root -> bytes, in place of
    the commit's file or beside its files, also over ``changes``. ``links``: path below the root -> an existing file or
    folder outside of the tree, for inputs that no commit holds; a path that the commit itself holds stays the commit's.
    """

    pins: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, Path] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """The items by path, and the overlay's part in them."""

    items: dict[bytes, Item]
    pinned: frozenset[str]
    linked: frozenset[str]
    shadowed_links: tuple[str, ...]


def blob_id(data: bytes, algorithm: str = "sha1") -> str:
    """The name that git gives these bytes (``algorithm``: the repository's object format)."""
    return hashlib.new(algorithm, b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def arrange(entries: Iterable[Entry], overlay: Overlay, algorithm: str = "sha1") -> Layout:
    """The layout of a commit's entries under an overlay.

    Raises UntestableError ``unsafe-tree`` for entries that no honest git writes, or that a pin's path runs into;
    UsageError ``bad-overlay`` for overlay paths that leave the tree and for links to nothing.
    """
    items: dict[bytes, Item] = {}
    for mode, _, id_, path in entries:
        _check_parts(path)
        if path in items:
            raise UntestableError("unsafe-tree", f"The commit's tree holds {os.fsdecode(path)!r} twice.")
        items[path] = Item(plain_mode(mode), id_)
    for path, change in overlay.changes.items():
        items.pop(path, None)
        if change is not None:
            _check_parts(path)
            items[path] = change
    pins = {_overlay_path(path): data for path, data in overlay.pins.items()}
    for path, data in pins.items():
        old = items.get(path)
        mode = old.mode if old is not None and old.mode in (FILE, EXECUTABLE) else FILE
        items[path] = Item(mode, blob_id(data, algorithm), data)
    folders = _folders(items)
    linked, shadowed = set(), []
    for name, target in overlay.links.items():
        path = _overlay_path(name)
        if not target.exists():
            raise UsageError("bad-overlay", f"The link {name!r} needs {target}, which does not exist.")
        if path in items or path in folders:
            shadowed.append(name)
            continue
        data = os.fsencode(target.absolute())
        items[path] = Item(SYMLINK, blob_id(data, algorithm), data)
        linked.add(os.fsdecode(path))
    _check_folders(items)
    return Layout(items, frozenset(map(os.fsdecode, pins)), frozenset(linked), tuple(shadowed))


def with_submodules(layout: Layout, inside: Callable[[str], Iterable[Entry] | None]) -> Layout:
    """The layout with the entries of those submodules' commits that ``inside`` knows, in place of empty folders."""
    items: dict[bytes, Item] = {}
    for path, item in layout.items.items():
        entries = inside(item.id) if item.mode == SUBMODULE else None
        if entries is None:
            items[path] = item
            continue
        for mode, _, id_, name in entries:
            _check_parts(name)
            items[path + b"/" + name] = Item(plain_mode(mode), id_)
    _check_folders(items)
    return replace(layout, items=items)


def plain_mode(mode: int) -> int:
    """One of the four modes of a leaf; early git wrote 100664 and others for files."""
    if mode in (SYMLINK, SUBMODULE):
        return mode
    return EXECUTABLE if mode & 0o100 else FILE


def leaves_tree(path: bytes, target: bytes) -> bool:
    """Whether the symbolic link at ``path`` names something outside of the tree (by its text alone)."""
    if target.startswith(b"/"):
        return True
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target)).split(b"/")[0] == b".."


def _check_parts(path: bytes) -> None:
    for part in path.split(b"/"):
        if part in (b"", b".", b"..") or part.lower() == b".git":
            raise UntestableError(
                "unsafe-tree", f"The commit's tree holds the path {os.fsdecode(path)!r}, which would leave its folder."
            )


def _overlay_path(path: str) -> bytes:
    raw = os.fsencode(posixpath.normpath(path))
    try:
        _check_parts(raw)
    except UntestableError:
        raise UsageError("bad-overlay", f"{path!r} does not name a place below the root of the tree.") from None
    return raw


def _check_folders(items: Mapping[bytes, Item]) -> None:
    for folder in _folders(items):
        if folder in items:
            raise UntestableError(
                "unsafe-tree", f"{os.fsdecode(folder)!r} would have to be a file or link and a folder at once."
            )


def _folders(items: Mapping[bytes, Item]) -> set[bytes]:
    found: set[bytes] = set()
    for path in items:
        at = path.rfind(b"/")
        while at > 0 and path[:at] not in found:
            found.add(path[:at])
            at = path.rfind(b"/", 0, at)
    return found
