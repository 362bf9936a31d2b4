"""What the comparison needs of a trace. Pure."""

from __future__ import annotations

from typing import Any, Protocol

from ..trace.model import StepTable
from .values import Side


class TraceLike(Protocol):
    """A trace that can be compared: its manifest, and its steps by number."""

    manifest: dict[str, Any]

    def step(self, number: int) -> StepTable:
        """The events of a step."""


def side_of(trace: TraceLike) -> Side:
    """A trace as one side of a comparison; steps are read when they are asked for."""
    return Side(sorted(entry["step"] for entry in trace.manifest["steps"]), trace.step)
