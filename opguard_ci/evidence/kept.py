"""Reads what ``capture.keep`` left of an event: its tensors as bytes, without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from opguard_ci.evidence.difference import Content

KEPT: Final = "kept.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """One event of one run.

    ``entry`` is what ``capture.keep`` wrote: ``op``, ``text``, ``args`` and ``kwargs`` of a call, and by name
    (``input 0``, ``output 0``, ``written 0``, ``generator``; ``value`` of a contract value) the ``tensors`` that were
    saved and the ``problems`` of those that could not be.
    """

    folder: Path
    entry: dict[str, Any]

    def content(self, name: str) -> Content | str:
        """A tensor, its bytes mapped from the file; or why there is none."""
        about = self.entry["tensors"].get(name)
        if about is None:
            return str(self.entry["problems"].get(name, "it was not there"))
        return Content(about["dtype"], tuple(about["shape"]), _bytes(self.folder / about["file"], name))

    def nbytes(self) -> int:
        """Bytes of all of its files."""
        return sum((self.folder / name).stat().st_size for name in self.files())

    def files(self) -> list[str]:
        """The names of its files."""
        return sorted({about["file"] for about in self.entry["tensors"].values()})


def read_kept(folder: Path) -> list[Kept]:
    """The events that a run kept, in the order in which it came by them."""
    file = folder / KEPT
    return [Kept(folder, entry) for entry in json.loads(file.read_text())] if file.exists() else []


def _bytes(file: Path, name: str) -> np.ndarray[Any, Any]:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        begin, end = json.loads(stream.read(size))[name]["data_offsets"]
    if begin == end:  # an empty file region cannot be mapped
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r", offset=8 + size + begin, shape=(end - begin,))
