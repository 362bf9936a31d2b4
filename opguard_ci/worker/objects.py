"""Reading git objects through one ``git cat-file --batch`` process, and the entries of tree objects."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

BATCH = 256
"""Requests written before answers are read: few enough to fit a pipe's buffer, so neither side waits for ever."""


class Entry(NamedTuple):
    """One leaf of a commit's tree: ``kind`` is ``blob``, or ``commit`` for a submodule; ``path`` as git stores it."""

    mode: int
    kind: str
    id: str
    path: bytes


class UnreadableObjectError(Exception):
    """An object that is missing or damaged; the reader that raised this has ended."""

    def __init__(self, id_: str, why: str) -> None:
        super().__init__(f"{id_}: {why}")
        self.id = id_
        self.why = why


class ObjectReader:
    """One ``cat-file --batch`` process. GitPython's own reader of that protocol refuses SHA-256 repositories."""

    def __init__(self, runner: Any, line: Sequence[str]) -> None:
        """Start ``line`` through GitPython's command object ``runner``."""
        started = runner.execute(list(line), istream=subprocess.PIPE, as_process=True)
        self._process: subprocess.Popen[bytes] = started.proc
        started.proc = None  # ours from here on: GitPython would end it with a signal and not wait for it

    def read(self, ids: Sequence[str]) -> list[tuple[str, bytes]]:
        """Kind and bytes of at most `BATCH` objects, one round trip (UnreadableObjectError)."""
        assert len(ids) <= BATCH
        requests = cast(IO[bytes], self._process.stdin)
        found = []
        try:
            requests.write("".join(f"{id_}\n" for id_ in ids).encode("ascii"))
            requests.flush()
            for id_ in ids:
                found.append(self._answer(id_))
        except OSError as error:
            self.close()
            raise UnreadableObjectError(ids[0], f"the object reader ended ({error})") from error
        except BaseException:
            self.close()  # after a partly read answer the next request would be given the wrong object
            raise
        return found

    def _answer(self, id_: str) -> tuple[str, bytes]:
        answers = cast(IO[bytes], self._process.stdout)
        header = answers.readline().split()
        if len(header) != 3:
            raise UnreadableObjectError(id_, "git finds no such object" if header else "the object reader ended")
        size = int(header[2])
        data = answers.read(size + 1)
        if len(data) != size + 1:
            raise UnreadableObjectError(id_, "it is damaged")
        return header[1].decode(), data[:size]

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            try:
                cast(IO[bytes], stream).close()
            except BrokenPipeError:
                continue  # the request that the reader died of was still in the buffer
        self._process.wait()


def parse_tree(data: bytes, width: int) -> Iterator[Entry]:
    """The records of a raw tree object: octal mode, space, name, NUL, binary hash of ``width`` bytes."""
    at = 0
    while at < len(data):
        space = data.index(b" ", at)
        end = data.index(b"\0", space)
        mode = int(data[at:space], 8)
        at = end + 1 + width
        kind = {0o040000: "tree", 0o160000: "commit"}.get(mode, "blob")
        yield Entry(mode, kind, data[end + 1 : at].hex(), data[space + 1 : end])
