"""The pieces of a commit's change against another commit, and what a subset of them makes of that commit's files.

A piece is a hunk of a text file, or a whole: a file that was added or deleted, a new name, a new mode, the content of a
binary file, a link, a submodule. A renamed and edited file is several: its new name, and each hunk. Everything is read
from git objects; of the user's checkout, only what ``.gitattributes`` calls binary counts.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from opguard_ci.errors import OpguardError
from opguard_ci.worker.git import Repository
from opguard_ci.worker.layout import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Changes, Item, blob_id, plain_mode

Kind = Literal["hunk", "added", "deleted", "renamed", "mode", "binary", "link", "submodule"]

_DIFF: Final = ("diff-tree", "-r", "--no-commit-id", "--no-ext-diff", "--no-textconv", "--no-color", "--find-renames")
_PATCH: Final = ("-p", "-U0", "--inter-hunk-context=0", "--full-index", "--diff-algorithm=histogram",
                 "--diff-filter=MR", "--ignore-submodules=all")  # fmt: skip
_HUNK: Final = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_INDEX: Final = re.compile(rb"index ([0-9a-f]+)\.\.([0-9a-f]+)")
_REGULAR: Final = (FILE, EXECUTABLE)
_NOTHING: Final = Item(0, "")


class Lines(NamedTuple):
    """Lines of a file as a hunk names them: ``first`` counts from 1; without any, it is the line before them."""

    first: int
    number: int

    @property
    def slice(self) -> slice:
        """The same lines in a list."""
        begin = self.first - 1 if self.number else self.first
        return slice(begin, begin + self.number)

    def holds(self, line: int) -> bool:
        """Whether a line, counted from 1, is among them."""
        return self.first <= line < self.first + self.number


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece: its lines in ``old_path`` before and in ``path`` afterwards (none where that is no text)."""

    kind: Kind
    old_path: str
    path: str
    old: Lines
    new: Lines
    removed: tuple[bytes, ...] = ()
    added: tuple[bytes, ...] = ()


class Pieces:
    """The change from ``before`` to ``after`` (full hashes) in pieces, which are known by their place in ``all``.

    ``ignored``: paths below the root whose change is left out.
    """

    def __init__(self, repository: Repository, before: str, after: str, *, ignored: Collection[str] = ()) -> None:
        self._repository = repository
        left_out = set(map(os.fsencode, ignored))
        files = [
            file for file in _files(repository, before, after) if left_out.isdisjoint((file.old_path, file.new_path))
        ]
        texts = {item.id for file in files for item in (file.old, file.new) if item.mode in _REGULAR}
        self._texts = dict(repository.blobs(sorted(texts)))
        hunks = _hunks(repository, before, after)
        self.all: list[Piece] = []
        self._files: list[tuple[_File, range]] = []
        for file in files:
            start = len(self.all)
            self.all += self._pieces_of(file, hunks.get((file.old.id, file.new.id), []))
            self._files.append((file, range(start, len(self.all))))

    def changes(self, subset: Collection[int]) -> dict[bytes, Item | None]:
        """What takes the place of the files of ``before`` when these pieces are laid over it."""
        made: dict[bytes, Item | None] = {}
        for file, numbers in self._files:
            chosen = [self.all[number] for number in numbers if number in subset]
            if not chosen:
                continue
            is_moved = any(piece.kind != "hunk" and piece.kind != "binary" for piece in chosen)
            path = file.new_path if is_moved else file.old_path
            made[file.old_path] = None
            if file.is_content:
                mode = file.new.mode if is_moved else file.old.mode
                made[path] = self._content(file, chosen, len(numbers))._replace(mode=mode)
            elif file.new.mode:
                made[path] = file.new
        return made

    def patch(self, subset: Collection[int]) -> bytes:
        """A patch for ``git apply`` on ``before`` that does what `changes` says; submodules are left out."""
        with tempfile.TemporaryDirectory(prefix="opguard-patch-") as folder:
            before = {file.old_path: file.old for file, _ in self._files if file.old.mode}
            self._write(Path(folder, "a"), before)
            self._write(Path(folder, "b"), {**before, **self.changes(subset)})
            answer = self._repository.command(
                "diff", "--no-index", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-prefix", "-U3",
                "--no-renames", "a", "b", config=("-C", folder),
            )  # fmt: skip
        if answer.status > 1:
            raise OpguardError("git-failed", f"git diff --no-index failed: {answer.reason}.")
        return answer.output

    def _pieces_of(self, file: _File, hunks: list[tuple[Lines, Lines]]) -> Iterator[Piece]:
        old_path, path = os.fsdecode(file.old_path), os.fsdecode(file.new_path)
        if not file.is_content:
            yield Piece(file.kind, old_path, path, self._lines(file.old), self._lines(file.new))
            return
        if file.kind != "hunk":
            yield Piece(file.kind, old_path, path, Lines(0, 0), Lines(0, 0))
        if file.old.id == file.new.id:
            return
        if not hunks:
            yield Piece("binary", old_path, path, Lines(0, 0), Lines(0, 0))
            return
        before, after = (_split(self._texts[item.id]) for item in (file.old, file.new))
        for old, new in hunks:
            yield Piece("hunk", old_path, path, old, new, tuple(before[old.slice]), tuple(after[new.slice]))

    def _lines(self, item: Item) -> Lines:
        data = self._texts.get(item.id, b"")
        return Lines(0, 0) if b"\0" in data or not data else Lines(1, len(_split(data)))

    def _content(self, file: _File, chosen: list[Piece], num_pieces: int) -> Item:
        """The file's text with the chosen hunks, as an item whose mode does not count."""
        if len(chosen) == num_pieces or any(piece.kind == "binary" for piece in chosen):
            return file.new
        hunks = [piece for piece in chosen if piece.kind == "hunk"]
        if not hunks:
            return file.old
        lines = _split(self._texts[file.old.id])
        for piece in reversed(hunks):
            lines[piece.old.slice] = piece.added
        data = b"".join(lines)
        return Item(0, blob_id(data, self._repository.object_format), data)

    def _write(self, folder: Path, items: Changes) -> None:
        folder.mkdir()
        for path, item in items.items():
            if item is None or item.mode == SUBMODULE:
                continue
            place = Path(folder, os.fsdecode(path))
            place.parent.mkdir(parents=True, exist_ok=True)
            data = self._repository.blob(item.id) if item.data is None else item.data
            if item.mode == SYMLINK:
                place.symlink_to(os.fsdecode(data))
                continue
            place.write_bytes(data)
            place.chmod(0o755 if item.mode == EXECUTABLE else 0o644)


class _File(NamedTuple):
    """A path before and after; an item with mode 0 where there is no file."""

    old: Item
    new: Item
    old_path: bytes
    new_path: bytes

    @property
    def is_content(self) -> bool:
        """Whether a file stays a file, so that its content, name and mode are pieces of their own."""
        return self.old.mode in _REGULAR and self.new.mode in _REGULAR

    @property
    def kind(self) -> Kind:
        """What a piece that is not about the content is."""
        modes = (self.old.mode, self.new.mode)
        if SUBMODULE in modes:
            return "submodule"
        if not self.old.mode:
            return "added"
        if not self.new.mode:
            return "deleted"
        if SYMLINK in modes:
            return "link"
        if self.old_path != self.new_path:
            return "renamed"
        return "mode" if self.old.mode != self.new.mode else "hunk"


def _files(repository: Repository, before: str, after: str) -> Iterator[_File]:
    """``:mode mode id id status`` NUL path NUL, and a second path for renames."""
    records = iter(repository.require(*_DIFF, "--raw", "-z", "--abbrev=64", before, after, "--").split(b"\0"))
    for record in records:
        if not record:
            return
        old_mode, new_mode, old_id, new_id, status = record[1:].decode().split(" ")
        old_path = next(records)
        new_path = next(records) if status.startswith("R") else old_path
        yield _File(_item(old_mode, old_id), _item(new_mode, new_id), old_path, new_path)


def _item(mode: str, id_: str) -> Item:
    return Item(plain_mode(int(mode, 8)), id_) if int(mode, 8) else _NOTHING


def _hunks(repository: Repository, before: str, after: str) -> Mapping[tuple[str, str], list[tuple[Lines, Lines]]]:
    """The hunks of every text file that stayed a file, by its ids before and after."""
    found: dict[tuple[str, str], list[tuple[Lines, Lines]]] = {}
    ids, inside = ("", ""), 0
    for line in _split(repository.require(*_DIFF, *_PATCH, before, after, "--")):
        if line.startswith(b"\\"):
            continue  # "\ No newline at end of file"
        if inside:
            inside -= 1
        elif match := _INDEX.match(line):
            ids = (match[1].decode(), match[2].decode())
            found[ids] = []
        elif match := _HUNK.match(line):
            first, number, new_first, new_number = (1 if part is None else int(part) for part in match.groups())
            found[ids].append((Lines(first, number), Lines(new_first, new_number)))
            inside = number + new_number
    return found


def _split(data: bytes) -> list[bytes]:
    """Lines with their ends, as git counts them: only a line feed ends one."""
    return io.BytesIO(data).readlines()
