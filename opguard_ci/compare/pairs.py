"""Two runs with what each did that the other did not: alignments and look-ups that the causes share. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property

import numpy as np

from ..trace.model import Event
from .align import Alignment, align
from .origin import Origins
from .side import Rows, Side
from .values import Key, base_name, read_values


class Unmatched:
    """The operators and copies of a step that one run did more often than the other."""

    def __init__(self, events: list[Event], numbers: set[int]) -> None:
        self.events = [event for event in events if event.computes]
        self.numbers = numbers

    def __contains__(self, event: Event) -> bool:
        return event.index in self.numbers

    @cached_property
    def by_inputs(self) -> dict[Key, list[Event]]:
        """Operators by what they computed from: name and input values."""
        found: dict[Key, list[Event]] = defaultdict(list)
        for event in self.events:
            found[inputs_key(event)].append(event)
        return found

    @cached_property
    def by_operator(self) -> dict[str, list[Event]]:
        """Operators by overload."""
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            found[event.op].append(event)
        return found


class Pairs:
    """The reference and the candidate, step by step beside each other."""

    def __init__(self, reference: Side, candidate: Side) -> None:
        self.reference, self.candidate = reference, candidate
        self.forward = Origins(candidate, reference)  # what the candidate does and the reference does not
        self.backward = Origins(reference, candidate)
        self._alignments: dict[int, Alignment] = {}
        self._unmatched: dict[int, tuple[Unmatched, Unmatched]] = {}

    def alignment(self, step: int) -> Alignment:
        """The two sides' operators of a step, laid side by side."""
        if step not in self._alignments:
            self._alignments[step] = align(self.reference.view(step), self.candidate.view(step))
        return self._alignments[step]

    def like(self, event: Event) -> Event | None:
        """The reference's event at the place of a candidate's event."""
        return self.alignment(event.step).counterpart(event)

    def like_of_reference(self, event: Event) -> Event | None:
        """The candidate's event at the place of a reference's event."""
        return self.alignment(event.step).counterpart_of_reference(event)

    def unmatched(self, step: int) -> Unmatched:
        """What the candidate did in a step that the reference did not do, or not as often."""
        return self._both(step)[1]

    def unmatched_in_reference(self, step: int) -> Unmatched:
        """What the reference did in a step that the candidate did not do, or not as often."""
        return self._both(step)[0]

    def _both(self, step: int) -> tuple[Unmatched, Unmatched]:
        found = self._unmatched.get(step)
        if found is None:
            aligned = self.alignment(step)
            sides = (aligned.reference, aligned.candidate)
            keys = [side.view.hashes.full[side.rows] for side in sides]
            alike = keys[0][aligned.places[0]] == keys[1][aligned.places[1]]
            rest = [
                Rows(side.view, np.delete(side.rows, places[alike]))
                for side, places in zip(sides, aligned.places, strict=True)
            ]
            found = self._unmatched[step] = (_surplus(*rest), _surplus(*reversed(rest)))
        return found


def _surplus(events: Rows, others: Rows) -> Unmatched:
    """What is left of some events when each of the other run's has taken one that did the same."""
    spare = Counter(others.view.hashes.full[others.rows].tolist())
    left = []
    for place, key in enumerate(events.view.hashes.full[events.rows].tolist()):
        if spare[key] > 0:
            spare[key] -= 1
        else:
            left.append(events[place])
    return Unmatched(left, {event.index for event in left})


def inputs_key(event: Event) -> Key:
    """What an operator computed from, whatever its form: name and input values."""
    return (base_name(event.op), read_values(event))
