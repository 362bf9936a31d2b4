"""The steps in which operators are recorded: of a long run, the ones around a late fault."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Window:
    """Steps ``first`` to ``last``, both included; None: from the beginning, to the end. Setup is step -1."""

    first: int | None
    last: int | None

    def __contains__(self, step: int) -> bool:
        return (self.first is None or step >= self.first) and (self.last is None or step <= self.last)

    def __str__(self) -> str:
        if self.first is None:
            return f"up to step {self.last}"
        return f"from step {self.first} on" if self.last is None else f"from step {self.first} to step {self.last}"


def require_window(first: int | None, last: int | None, level: str) -> None:
    """Raise ``UsageError`` for a window that no step lies in, or at a level that records no operator anyway."""
    if first is not None and last is not None and last < first:
        raise UsageError("bad-window", f"--to-step {last} lies before --from-step {first}.")
    if level == "contract" and (first, last) != (None, None):
        raise UsageError("bad-window", "At level contract no operators are recorded, in no window: leave one out.")
