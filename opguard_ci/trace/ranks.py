"""The manifests of the ranks of a distributed run, put together as one.

While the run lasts, rank 0 writes ``manifest.json`` and every other rank a part beside it, which says the same about
its own events.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opguard_ci.errors import UsageError
from opguard_ci.trace.digest import combined_digests
from opguard_ci.trace.files import MANIFEST, part_name
from opguard_ci.trace.writer import write_manifest

Manifest = Mapping[str, Any]


def merge_parts(folder: Path, outcome: Manifest, last_operator: str | None = None) -> dict[str, Any] | None:
    """Make one manifest of what the ranks wrote into ``folder``; None if rank 0 had not begun, or it was done before.

    Args:
        folder: of the trace.
        outcome: how the run ended as a whole.
        last_operator: that the rank which failed had begun.

    """
    first = _read(folder / MANIFEST)
    if first is None or "rank" not in first:
        return None
    places = [folder / part_name(rank) for rank in range(1, first["ranks"])]
    manifest = merged([first, *map(_read, places)], outcome, last_operator)
    write_manifest(folder, manifest)
    for place in places:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)
    return manifest


def merged(parts: Sequence[Manifest | None], outcome: Manifest, last_operator: str | None = None) -> dict[str, Any]:
    """One manifest from those of all ranks in order, None for a rank that had not begun; there is one of rank 0.

    A complete run has every step that any rank has. Of one that broke off only the steps count that all have: ranks
    part where they wait for each other, and how far the others came says nothing.
    """
    first = parts[0]
    assert first is not None
    begun = [part for part in parts if part is not None]
    complete = len(begun) == len(parts) and all(part["complete"] for part in begun)
    coverage = [part["coverage"] for part in begun]
    found: dict[str, Any] = {
        **{key: held for key, held in first.items() if key != "rank"},
        "level": "op" if any(part["level"] == "op" for part in begun) else first["level"],
        "scheme": max((part["scheme"] for part in begun), key=len),
        "coverage": {
            **{key: sum(one[key] for one in coverage) for key in ("operators", "hashed")},
            "unhashed": _together(parts, lambda part: part["coverage"]["unhashed"]),
            "unseen": _together(parts, lambda part: part["coverage"]["unseen"]),
        },
        "steps": _steps(parts, complete),
        "objects": {name: entry for part in begun for name, entry in part["objects"].items()},
        "notes": _together(parts, lambda part: part["notes"]),
        "outcome": {key: outcome[key] for key in ("status", "slug", "message", "exit", "rank") if key in outcome},
        "last_operator": last_operator,
        "complete": complete and outcome["status"] == "ok",
    }
    if any("nonfinite" in part for part in begun):
        found["nonfinite"] = _together(parts, lambda part: part.get("nonfinite", []))
    return found


def of_rank(manifest: Manifest, rank: int) -> dict[str, Any]:
    """The manifest of a distributed run as that of one rank alone."""
    mine = [(entry["step"], entry["ranks"][rank]) for entry in manifest["steps"] if "ranks" in entry]
    return {**manifest, "ranks": 1, "steps": [{"step": step, **entry} for step, entry in mine if entry is not None]}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError("trace-damaged", f"{path} cannot be read: {error}.") from None
    return found


def _steps(parts: Sequence[Manifest | None], complete: bool) -> list[dict[str, Any]]:
    by_rank = [
        {} if part is None else {entry["step"]: entry["ranks"][rank] for entry in part["steps"]}
        for rank, part in enumerate(parts)
    ]
    found = []
    for step in sorted({step for steps in by_rank for step in steps}):
        entries = [steps.get(step) for steps in by_rank]
        if not complete and None in entries:
            break
        found.append(
            {
                "step": step,
                "events": sum(entry["events"] for entry in entries if entry),
                "digests": combined_digests([entry and entry["digests"] for entry in entries]),
                "ranks": entries,
            }
        )
    return found


def _together(parts: Sequence[Manifest | None], texts_of: Callable[[Manifest], list[str]]) -> list[str]:
    """Texts of all ranks; one that not every rank has is said to be a rank's."""
    by_rank = [[] if part is None else texts_of(part) for part in parts]
    found: dict[str, None] = {}
    for rank, texts in enumerate(by_rank):
        for text in texts:
            everywhere = all(text in others for others in by_rank)
            found[text if everywhere else f"rank {rank}: {text}"] = None
    return list(found)
