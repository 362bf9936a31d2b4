"""What the manifests of two traces say by themselves: which steps differ, and what a report notes. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

from ..determinism.environment import diff
from ..levels import BLIND_SPOTS
from .verdict import Verdict

_MAX_FIELDS: Final = 12
"""So many fields in which two environments differ are listed."""


class Manifests:
    """Two manifests, reference first. ``differing``: the steps whose digests are not equal, or that one side lacks."""

    def __init__(self, left: dict[str, Any], right: dict[str, Any]) -> None:
        self.left, self.right = left, right
        limit = _limit(left, right)
        digests = [
            {s["step"]: s["digests"] for s in manifest["steps"] if s["step"] < limit} for manifest in (left, right)
        ]
        self.common = [step for step in digests[0] if step in digests[1]]
        self.steps = sorted({*digests[0], *digests[1]})
        self.full = "contract" not in (left.get("level"), right.get("level"))
        self._windows = [_window(manifest) for manifest in (left, right)]
        self.differing = [s for s in self.steps if not _equal(digests[0].get(s), digests[1].get(s), self.sees(s))]
        self.notes: list[str] = self._first_notes()

    def sees(self, step: int) -> bool:
        """Whether both runs recorded the operators of a step."""
        return self.full and all(first <= step <= last for first, last in self._windows)

    @property
    def decide(self) -> bool:
        """Whether no event has to be looked at: digests are equal, nothing was allowed to differ, and no operator of
        the candidate's may be a finding.
        """
        one_rank = self.right.get("ranks", 1) == 1
        allow = any(manifest.get(what) for manifest in (self.left, self.right) for what in ("tolerance", "unstable"))
        flagged = self.full and any(entry.get("flagged") != [] for entry in self.right["steps"])
        return one_rank and not (self.differing or allow or flagged)

    def agreement(self) -> Verdict:
        """The verdict where the manifests decide."""
        name = "identical"
        doubt = self.doubt()
        if doubt:
            self.notes.append(doubt)
            name = "untestable"
        return Verdict(name, **self.identities())

    def identities(self) -> dict[str, Any]:
        """What every verdict says of the two runs."""
        return {
            "reference": identity(self.left),
            "candidate": identity(self.right),
            "coverage": self.right.get("coverage", {}),
            "notes": self.notes,
        }

    def _first_notes(self) -> list[str]:
        notes = []
        for name in ("target", "profile", "level"):
            mine, other = self.left.get(name), self.right.get(name)
            if mine != other:
                notes.append(f"The two sides differ in {name}: {mine!r} and {other!r}.")
        levels = [manifest.get("level") for manifest in (self.left, self.right)]
        notes += [sentence for level, sentence in BLIND_SPOTS.items() if level in levels]
        limit = _limit(self.left, self.right)
        if any(entry["step"] >= limit for manifest in (self.left, self.right) for entry in manifest["steps"]):
            notes.append(f"One side was asked for its first {int(limit)} steps only: the others were not compared.")
        mine, others = (manifest.get("notes", ()) for manifest in (self.left, self.right))
        notes += [note for note in mine if note in others]
        notes += [f"reference: {note}" for note in mine if note not in others]
        notes += [f"candidate: {note}" for note in others if note not in mine]
        return notes

    def doubt(self) -> str:
        """Why agreement proves nothing; empty if it does."""
        for side, manifest in (("reference", self.left), ("candidate", self.right)):
            if not manifest.get("complete", False):
                reason = (manifest.get("outcome") or {}).get("message", "it was cut short")
                return f"The {side} did not run to its end: {reason}"
            unseen = ", ".join(manifest.get("coverage", {}).get("unseen", ()))
            if unseen and not manifest.get("allow_unseen"):
                return f"Operators of the {side} went unseen: {unseen}; --allow-unseen accepts that."
        return ""


def _limit(left: dict[str, Any], right: dict[str, Any]) -> float:
    """The step from which on one side has none because nobody asked it for more."""
    asked = left.get("asked_steps"), right.get("asked_steps")
    return math.inf if asked[0] == asked[1] else min(steps for steps in asked if steps is not None)


def _window(manifest: dict[str, Any]) -> tuple[float, float]:
    """The steps in which operators were recorded, both ends included."""
    window = manifest.get("window") or {}
    first, last = window.get("from"), window.get("to")
    return (-math.inf if first is None else first, math.inf if last is None else last)


def _equal(left: dict[str, Any] | None, right: dict[str, Any] | None, full: bool) -> bool:
    if left is None or right is None:
        return False
    if full:
        return left == right
    return {k: v for k, v in left.items() if k not in ("operators", "data")} == {
        k: v for k, v in right.items() if k not in ("operators", "data")
    }


def identity(manifest: dict[str, Any]) -> dict[str, Any]:
    """Which run a manifest is of."""
    return {
        "commit": manifest.get("commit"),
        "environment": manifest["environment"].get("key"),
        "target": manifest.get("target"),
    }


def other_environments(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """What differs between the two environments, reference first."""
    lines = diff(left.get("document") or {}, right.get("document") or {})
    more = [f"… and {len(lines) - _MAX_FIELDS} more"] if len(lines) > _MAX_FIELDS else []
    return [f"Environment: {line}" for line in lines[:_MAX_FIELDS] + more]
