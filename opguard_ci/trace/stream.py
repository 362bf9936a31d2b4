"""One Arrow IPC stream on disk, written a batch at a time: whatever happens, what was handed over can be read."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from opguard_ci.errors import UsageError


class ArrowFile:
    """A new file. A batch is handed to the system in one piece, so that a killed run leaves whole ones.

    Raises ``OSError`` if it cannot be made, ``UsageError`` ``disk-full`` or ``output-unwritable`` later.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)
        self._pending = io.BytesIO()
        # One thread: a pool would compete with the run that is being watched.
        options = pa.ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=True, use_threads=False)
        self._stream = pa.ipc.new_stream(self._pending, schema, options=options)
        self._sha256 = hashlib.sha256()
        self._bytes = 0
        self.failed: UsageError | None = None
        self.closed = False

    def write(self, batch: pa.RecordBatch, metadata: Mapping[str, str] | None = None) -> None:
        """Append a batch."""
        assert not self.closed, f"{self.path} is closed"
        if self.failed is not None:
            raise self.failed
        self._stream.write_batch(batch, custom_metadata=metadata)
        self._flush()

    def close(self) -> dict[str, Any]:
        """End the stream. Returns ``sha256`` and ``bytes`` of what was written; may be called again."""
        if not self.closed:
            self.closed = True
            try:
                if self.failed is None:
                    self._stream.close()
                    self._flush()
            finally:
                self._file.close()
        return {"sha256": self._sha256.hexdigest(), "bytes": self._bytes}

    def _flush(self) -> None:
        data = self._pending.getvalue()
        self._pending.seek(0)
        self._pending.truncate()
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self.failed = unwritable(self.path, error)
            self._drop_partial_batch()
            raise self.failed from error
        self._sha256.update(data)
        self._bytes += len(data)

    def _drop_partial_batch(self) -> None:
        try:
            os.ftruncate(self._file.fileno(), self._bytes)
        except OSError:
            return  # the reader leaves an unfinished message out as well


def unwritable(path: Path, error: OSError) -> UsageError:
    """What to tell a person whose disk does not take a trace."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UsageError("disk-full", f"no space left for {path}; the steps written so far can be read.")
    return UsageError("output-unwritable", f"cannot write {path}: {error.strerror or error}.")
