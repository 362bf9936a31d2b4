"""Which pieces of the culprit change the numbers: subsets of them are laid over its parent, and each is run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from opguard_ci.bisect.classes import Classes, write_expected
from opguard_ci.bisect.hunks import Answer, smallest
from opguard_ci.worker.commits import Run
from opguard_ci.worker.layout import Changes
from opguard_ci.worker.pieces import Lines, Piece, Pieces
from opguard_ci.worker.scratch import Scratch

MAX_LINES: Final = 40
"""Lines of a hunk that the report holds; the patch holds all."""
_MAX_LINE: Final = 200


class Measure(Protocol):
    """Runs the parent with changes laid over it; a run may end at the first step that ``expected`` has otherwise."""

    def __call__(self, changes: Changes, expected: Path) -> Run:
        """The finished run."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The pieces that give the culprit's numbers, as ``hunks`` of the report and as a patch for its parent."""

    hunks: list[dict[str, Any]]
    patch: bytes
    notes: list[str]


def narrow(
    pieces: Pieces, whole: Run, measure: Measure, classes: Classes, divergence: Mapping[str, Any], *,
    progress: Callable[[str], None],
) -> Narrowed:  # fmt: skip
    """Find the smallest set of pieces that gives the numbers of ``whole``, the culprit's own run to its end.

    Third numbers, which neither the culprit nor its parent has, are not the culprit's. ``classes`` tells runs apart;
    ``divergence`` is the culprit's first one against its parent: pieces that hold a frame of it are tried first.
    """
    framed = [holds_frame(piece, divergence) for piece in pieces.all]
    files = {piece.path for piece, is_framed in zip(pieces.all, framed, strict=True) if is_framed}
    order = sorted(range(len(framed)), key=lambda number: (not framed[number], pieces.all[number].path not in files))
    label = classes.label(whole)
    tried = 0
    with Scratch() as scratch:
        expected = write_expected(whole.trace, Path(scratch, "expected.json"))

        def ask(subset: frozenset[int]) -> Answer:
            nonlocal tried
            tried += 1
            progress(f"hunks, try {tried}: {len(subset)} of {len(order)} laid over the parent")
            run = measure(pieces.changes({order[number] for number in subset}), expected)
            if not run.testable:
                return "unknown"
            return "same" if classes.label(run) == label else "other"

        found = smallest(len(order), ask)
    chosen = sorted(order[number] for number in found.pieces)
    unproven = {order[number] for number in found.unproven}
    notes = []
    if unproven:
        notes.append(
            f"Without {_number(len(unproven))} of the hunks named the commit cannot be run, "
            "so it is not known whether they change numbers."
        )
    if not found.is_finished:
        notes.append(f"The search among the hunks was given up after {tried} tries; fewer of them may be enough.")
    hunks = [_to_json(pieces.all[number], framed[number], number not in unproven) for number in chosen]
    return Narrowed(hunks, pieces.patch(chosen), notes)


def holds_frame(piece: Piece, divergence: Mapping[str, Any]) -> bool:
    """Whether a line of the divergence's stack lies in the piece, on the side that the stack is from."""
    is_reference = divergence.get("side") == "reference"
    path, lines = (piece.old_path, piece.old) if is_reference else (piece.path, piece.new)
    frames = divergence.get("stack") or ()
    return any(frame.get("file") == path and lines.holds(int(frame.get("line") or 0)) for frame in frames)


def _to_json(piece: Piece, is_framed: bool, is_proven: bool) -> dict[str, Any]:
    changed = [b"-" + line for line in piece.removed] + [b"+" + line for line in piece.added]
    return {
        "file": _shown(piece.path),
        "lines": _range(piece.new) or ([max(piece.new.first, 1)] * 2 if piece.kind == "hunk" else None),
        "kind": piece.kind,
        "old_file": _shown(piece.old_path),
        "old_lines": _range(piece.old),
        "frame": is_framed,
        "proven": is_proven,
        "text": [line.decode(errors="replace").rstrip("\r\n")[:_MAX_LINE] for line in changed[:MAX_LINES]],
        "more": max(len(changed) - MAX_LINES, 0),
    }


def _range(lines: Lines) -> list[int] | None:
    return [lines.first, lines.first + lines.number - 1] if lines.number else None


def _shown(path: str) -> str:
    return os.fsencode(path).decode(errors="replace")


def _number(count: int) -> str:
    return "one" if count == 1 else str(count)
