"""Compares the named values that two runs promise per step, also where names changed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..trace.model import Event

SOFT: Final = frozenset(("gradient",))
"""Sections that are noted but do not fail by themselves."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A contract value that differs: its event on each side, None where it does not exist."""

    section: str
    name: str
    reference: Event | None
    candidate: Event | None

    @property
    def hard(self) -> bool:
        """Whether it fails the comparison."""
        return self.section not in SOFT


def differences(reference: list[Event], candidate: list[Event]) -> list[Difference]:
    """The contract values of one step that differ, in the reference's order."""
    found: list[Difference] = []
    left, right = _by_section(reference), _by_section(candidate)
    _renumber(left, right)
    for section in dict.fromkeys([*left, *right]):
        found += _section(section, left.get(section, {}), right.get(section, {}))
    return found


def first_failure(
    steps: Iterable[tuple[int, list[Difference]]], *, same_steps: bool
) -> tuple[int | None, list[Difference], list[str]]:
    """The first step that fails, what differs there, and notes; None if no step fails.

    A generator that is in another state for some steps, as when draws are made ahead, fails none if no other value
    differs before it is back. Where one run ends before the other, what only one returned there
    tells less than the first step that the other lacks.

    Args:
        steps: each with the values that fail the comparison.
        same_steps: whether both runs have all of them.

    """
    astray: tuple[int | None, list[Difference]] = (None, [])
    ended: tuple[int | None, list[Difference]] = (None, [])
    notes: list[str] = []
    for step, hard in steps:
        if hard and not same_steps and all(d.section == "final" for d in hard):
            ended = (step, hard)
        elif any(d.section != "rng" for d in hard):
            return *(astray if astray[1] else (step, hard)), notes
        elif astray[1] and not hard:
            names = ", ".join(difference.name for difference in astray[1])
            notes.append(f"Generator {names} is in another state in step {astray[0]}, but not in step {step}.")
            astray = (None, [])
        elif not astray[1]:
            astray = (step, hard)
    return *(astray if astray[1] else ended), notes


def _by_section(events: list[Event]) -> dict[str, dict[str, Event]]:
    sections: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event.kind == "contract":
            names = sections[event.op]
            name, number = event.args, 1
            while name in names:  # the same name again in a step, as a loss per micro-batch
                number += 1
                name = f"{event.args}#{number}"
            names[name] = event
    return sections


def _renumber(left: dict[str, dict[str, Event]], right: dict[str, dict[str, Event]]) -> None:
    """Where modules of the candidate are counted otherwise, give its values the names that the reference has for their
    place in the optimizer, and its buffers those of the parameters beside them.

    That is so if values agree by place that do not by name.
    """
    mine, its = left.get("parameter", {}), right.get("parameter", {})
    by_key: dict[str | None, str] = {event.key: name for name, event in mine.items() if event.key is not None}
    places = {name: by_key[event.key] for name, event in its.items() if event.key in by_key}
    if _num_equal(mine, its, places) <= _num_equal(mine, its, {name: name for name in places}):
        return
    modules = {name.rpartition(".")[0]: place.rpartition(".")[0] for name, place in places.items()}
    for section in right:
        by_key = {event.key: name for name, event in left.get(section, {}).items() if event.key is not None}
        renamed: dict[str, Event] = {}
        for name, event in right[section].items():
            module, dot, last = name.rpartition(".")
            new = by_key.get(event.key) or f"{modules.get(module, module)}{dot}{last}"
            while new in renamed:
                new += "#"
            renamed[new] = event
        right[section] = renamed


def _num_equal(left: dict[str, Event], right: dict[str, Event], names: dict[str, str]) -> int:
    """How many of some values of the candidate are equal to those of the reference that are named."""
    pairs = ((right[name], left.get(other)) for name, other in names.items())
    return sum(other is not None and _value(event) == _value(other) for event, other in pairs)


def _value(event: Event) -> int:
    return event.reads[0].value


def _section(section: str, left: dict[str, Event], right: dict[str, Event]) -> list[Difference]:
    found = []
    only_left, only_right = dict(left), dict(right)
    for name in left:
        if name in right:
            if _value(left[name]) != _value(right[name]):
                found.append(Difference(section, name, left[name], right[name]))
            del only_left[name], only_right[name]
    found += _paired_by_key(section, only_left, only_right)
    _drop_equal_values(only_left, only_right)
    found += _paired_in_order(section, only_left, only_right)
    found += [Difference(section, name, event, None) for name, event in only_left.items()]
    found += [Difference(section, name, None, event) for name, event in only_right.items()]
    return found


def _paired_by_key(section: str, only_left: dict[str, Event], only_right: dict[str, Event]) -> list[Difference]:
    """Pair renamed values by their place in the optimizer; what is paired is taken out of both."""
    by_key = {event.key: name for name, event in only_right.items() if event.key is not None}
    found = []
    for name, event in list(only_left.items()):
        other = by_key.pop(event.key, None) if event.key is not None else None
        if other is None:
            continue
        if _value(event) != _value(only_right[other]):
            found.append(Difference(section, name, event, only_right[other]))
        del only_left[name], only_right[other]
    return found


def _drop_equal_values(only_left: dict[str, Event], only_right: dict[str, Event]) -> None:
    by_value: dict[int, list[str]] = defaultdict(list)
    for name, event in only_right.items():
        by_value[_value(event)].append(name)
    for name, event in list(only_left.items()):
        same = by_value.get(_value(event))
        if same:
            del only_left[name], only_right[same.pop(0)]


def _paired_in_order(section: str, only_left: dict[str, Event], only_right: dict[str, Event]) -> list[Difference]:
    """Pair what was renamed and differs, if both sides have as many of the same kind; it is taken out of both."""
    left, right = [*only_left.items()], [*only_right.items()]
    if [event.reads[0].spec for _, event in left] != [event.reads[0].spec for _, event in right]:
        return []
    only_left.clear()
    only_right.clear()
    return [Difference(section, name, event, other) for (name, event), (_, other) in zip(left, right, strict=True)]
