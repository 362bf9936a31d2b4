"""Two runs with what each did that the other did not: alignments and look-ups that the causes share. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property

from ..trace.model import Event
from .align import Alignment, align
from .origin import Origins
from .values import Key, Side, base_name, full_key, read_values


class Unmatched:
    """The operators and copies of a step that one run did more often than the other."""

    def __init__(self, events: list[Event], numbers: set[int]) -> None:
        self.events = [event for event in events if event.kind == "op"]
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
            self._alignments[step] = align(self.reference.view(step).events, self.candidate.view(step).events)
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
            left = {event.index: full_key(event) for event in aligned.reference}
            right = {event.index: full_key(event) for event in aligned.candidate}
            together = [(aligned.reference[a], aligned.candidate[b]) for a, b in aligned.pairs]
            alike = [(a.index, b.index) for a, b in together if left[a.index] == right[b.index]]
            found = self._unmatched[step] = (
                _surplus(aligned.reference, left, Counter(right.values()), {a for a, _ in alike}),
                _surplus(aligned.candidate, right, Counter(left.values()), {b for _, b in alike}),
            )
        return found


def _surplus(events: list[Event], keys: dict[int, Key], others: Counter[Key], aligned: set[int]) -> Unmatched:
    """What is left when each event of the other run has taken one that did the same, the one at its place first."""
    for number in aligned:
        others[keys[number]] -= 1
    left = []
    for event in events:
        if event.index in aligned:
            continue
        key = keys[event.index]
        if others[key] > 0:
            others[key] -= 1
        else:
            left.append(event)
    return Unmatched(left, {event.index for event in left})


def inputs_key(event: Event) -> Key:
    """What an operator computed from, whatever its form: name and input values."""
    return (base_name(event.op), read_values(event))
