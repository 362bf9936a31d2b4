"""Writes a trace as it happens: one record batch per step, readable at any moment."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from opguard_ci.errors import UsageError
from opguard_ci.trace.columns import ARROW_SCHEMA, MAX_EVENTS, MAX_VALUES, Encoder
from opguard_ci.trace.model import StepTable

MANIFEST: Final = "manifest.json"
_EVENTS: Final = re.compile(r"events-(\d+)\.arrows")


def events_name(rank: int) -> str:
    """The name of a rank's event file."""
    return f"events-{rank}.arrows"


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as JSON text. ``ValueError`` for NaN and infinities, which JSON does not have."""
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as in the name of a file that is not UTF-8
        return json.dumps(manifest, indent=1, allow_nan=False) + "\n"
    return text


class TraceWriter:
    """Writes the events of one rank, and the manifest, into a trace folder.

    A step is one record batch, handed to the system in one piece when it ends: a killed run loses the step that it
    was in, and memory holds one step.

    Args:
        folder: made if it does not exist; must be empty, but for the event files of other ranks.
        rank: number of this process in a distributed run.

    Raises:
        UsageError: ``output-exists`` or ``output-unwritable``.

    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self._path = folder / events_name(rank)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not _is_free(folder, rank):
                raise UsageError("output-exists", f"{folder} is not empty; name a folder that does not exist yet.")
            self._file = self._path.open("xb", buffering=0)
        except OSError as error:
            raise _unwritable(folder, error) from error
        self._pending = io.BytesIO()
        # One thread: a pool would compete with the run that is being watched.
        options = pa.ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=True, use_threads=False)
        self._stream = pa.ipc.new_stream(self._pending, ARROW_SCHEMA, options=options)
        self._encoder = Encoder()
        self._sha256 = hashlib.sha256()
        self._bytes = 0
        self._events = 0
        self._step: int | None = None
        self._failed: UsageError | None = None
        self._closed = False

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Put the manifest in place of the one before, at once. Only a closed trace may say ``"complete": true``."""
        document = {**manifest, "complete": manifest.get("complete", False)}
        assert not document["complete"] or (self._closed and self._failed is None), "complete, but still being written"
        path, partial = self.folder / MANIFEST, self.folder / f".{MANIFEST}.partial"
        try:
            partial.write_text(manifest_text(document), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise _unwritable(path, error) from error

    def write_step(self, table: StepTable) -> None:
        """Append a step. Steps count upwards, and event numbers go on where the step before ended.

        Raises:
            UsageError: ``disk-full``, ``output-unwritable``, ``step-order`` or ``trace-too-large``.

        """
        assert not self._closed, "the trace is closed"
        assert table.first == self._events, f"event {table.first} follows {self._events} events"
        if self._failed is not None:
            raise self._failed
        if self._step is not None and table.step <= self._step:
            raise UsageError(
                "step-order",
                f"step {table.step} began after step {self._step}; number the steps upwards over the whole run.",
            )
        values = 20 * len(table) + 5 * (len(table.read_value) + len(table.write_value)) + len(table.writers)
        if values > MAX_VALUES or table.first + len(table) > MAX_EVENTS:
            raise UsageError(
                "trace-too-large",
                f"step {table.step} has {len(table)} events, more than a trace can hold; use --level contract.",
            )
        # A step without events has no rows that could say where it stands.
        place = {"step": str(table.step), "first": str(table.first)}
        self._stream.write_batch(self._encoder.batch(table), custom_metadata=place)
        self._flush()
        self._step = table.step
        self._events += len(table)

    def close(self) -> dict[str, dict[str, Any]]:
        """End the stream. Returns the manifest's ``objects`` of this rank; may be called again."""
        if not self._closed:
            self._closed = True
            try:
                if self._failed is None:
                    self._stream.close()
                    self._flush()
            finally:
                self._file.close()
        entry = {"sha256": self._sha256.hexdigest(), "bytes": self._bytes, "events": self._events}
        return {self._path.name: entry}

    def _flush(self) -> None:
        data = self._pending.getvalue()
        self._pending.seek(0)
        self._pending.truncate()
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._failed = _unwritable(self._path, error)
            self._drop_partial_step()
            raise self._failed from error
        self._sha256.update(data)
        self._bytes += len(data)

    def _drop_partial_step(self) -> None:
        try:
            os.ftruncate(self._file.fileno(), self._bytes)
        except OSError:
            return  # the reader leaves an unfinished message out as well


def _is_free(folder: Path, rank: int) -> bool:
    """Whether nothing but other ranks' files is there. Rank 0 may have written the manifest already."""
    own = events_name(rank)
    present = [entry.name for entry in folder.iterdir()]
    if rank:
        return own not in present
    return all(_EVENTS.fullmatch(name) and name != own for name in present)


def _unwritable(path: Path, error: OSError) -> UsageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UsageError("disk-full", f"no space left for {path}; the steps written so far can be read.")
    return UsageError("output-unwritable", f"cannot write {path}: {error.strerror or error}.")
