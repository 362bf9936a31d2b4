"""Writes a trace as it happens: one record batch per step, readable at any moment."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from opguard_ci.errors import UsageError
from opguard_ci.trace.columns import ARROW_SCHEMA, MAX_EVENTS, MAX_VALUES, Encoder
from opguard_ci.trace.files import MANIFEST, events_name, part_name, values_name
from opguard_ci.trace.known import KNOWN_SCHEMA, Value, known_batch
from opguard_ci.trace.model import StepTable
from opguard_ci.trace.stream import ArrowFile, unwritable

_OF_A_RANK: Final = re.compile(r"(?:events|values)-\d+\.arrows|\.rank-\d+\.json(?:\.partial)?")


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as JSON text. ``ValueError`` for NaN and infinities, which JSON does not have."""
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as in the name of a file that is not UTF-8
        return json.dumps(manifest, indent=1, allow_nan=False) + "\n"
    return text


def write_manifest(folder: Path, manifest: dict[str, Any], name: str = MANIFEST) -> None:
    """Put a manifest in place of the one before, at once. ``UsageError``: ``output-unwritable`` or ``disk-full``."""
    path, partial = folder / name, folder / f".{name.removeprefix('.')}.partial"
    try:
        partial.write_text(manifest_text(manifest), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def make_folder(folder: Path) -> None:
    """Make the folder of a trace that several ranks will write, or take an empty one (errors: see ``TraceWriter``)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise _not_empty(folder)
    except OSError as error:
        raise unwritable(folder, error) from error


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
        self._rank = rank
        self._manifest = MANIFEST if rank == 0 else part_name(rank)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not _is_free(folder, rank):
                raise _not_empty(folder)
            self._file = ArrowFile(folder / events_name(rank), ARROW_SCHEMA)
        except OSError as error:
            raise unwritable(folder, error) from error
        self._known: ArrowFile | None = None
        self._encoder = Encoder()
        self._events = 0
        self._step: int | None = None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Put the manifest in place of the one before, at once. Only a closed trace may say ``"complete": true``."""
        document = {**manifest, "complete": manifest.get("complete", False)}
        assert not document["complete"] or (self._file.closed and not self._file.failed), (
            "complete, but still being written"
        )
        write_manifest(self.folder, document, self._manifest)

    def write_step(self, table: StepTable) -> None:
        """Append a step. Steps count upwards, and event numbers go on where the step before ended.

        Raises:
            UsageError: ``disk-full``, ``output-unwritable``, ``step-order`` or ``trace-too-large``.

        """
        assert table.first == self._events, f"event {table.first} follows {self._events} events"
        if self._file.failed is not None:
            raise self._file.failed
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
        self._file.write(self._encoder.batch(table), place)
        self._step = table.step
        self._events += len(table)

    def write_known(self, rows: Sequence[tuple[Value, bytes]]) -> None:
        """Append the numbers of values. The file is made when there are some.

        Raises ``UsageError`` as ``write_step``.
        """
        if self._known is None:
            path = self.folder / values_name(self._rank)
            try:
                self._known = ArrowFile(path, KNOWN_SCHEMA)
            except OSError as error:
                raise unwritable(path, error) from error
        self._known.write(known_batch(rows))

    def close(self) -> dict[str, dict[str, Any]]:
        """End the streams. Returns the manifest's ``objects`` of this rank; may be called again."""
        objects = {self._file.path.name: {**self._file.close(), "events": self._events}}
        if self._known is not None:
            objects[self._known.path.name] = self._known.close()
        return objects


def _is_free(folder: Path, rank: int) -> bool:
    """Whether nothing but other ranks' files is there. Rank 0 may have written the manifest already."""
    own = events_name(rank)
    present = [entry.name for entry in folder.iterdir()]
    if rank:
        return own not in present
    return all(_OF_A_RANK.fullmatch(name) and name != own for name in present)


def _not_empty(folder: Path) -> UsageError:
    return UsageError("output-exists", f"{folder} is not empty; name a folder that does not exist yet.")
