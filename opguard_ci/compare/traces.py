"""What the comparison needs of a trace. Pure."""

from __future__ import annotations

from typing import Any, Protocol

from ..trace.arrays import StepArrays
from ..trace.model import StepInfo
from .side import Side


class TraceLike(Protocol):
    """A trace that can be compared: its manifest, and its steps by number."""

    manifest: dict[str, Any]

    def index(self) -> list[StepInfo]:
        """Where the steps stand that can be read, in order."""

    def arrays(self, number: int) -> StepArrays:
        """The events of a step."""

    def numbers(self, value: int, spec: str) -> bytes | None:
        """The numbers of a value that the run kept, in logical order; None if it kept none."""


def side_of(trace: TraceLike) -> Side:
    """A trace as one side of a comparison; steps are read when they are asked for."""
    steps = sorted(entry["step"] for entry in trace.manifest["steps"])
    return Side(steps, trace.index, trace.arrays, assumes=trace.manifest.get("level") == "op")
