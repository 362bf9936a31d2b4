"""The random draws of two runs, laid side by side: which draw was inserted, left out or made from another state.
Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Final

from ..trace.model import RECOMPUTED, Event
from .side import Side, StepView
from .values import Key, base_name, read_values, result

_WINDOW: Final = 1000
"""So many draws after the first that differs decide what happened to it."""

_NEAR: Final = 2
"""In so many steps after it the first draw is looked for that sees another state."""


@dataclass(frozen=True, slots=True)
class DrawChange:
    """The first draw that differs. ``event`` belongs to ``side``; ``position`` is where the candidate departs."""

    what: str  # inserted, missing, arguments, state
    event: Event
    side: str
    other: Event | None
    position: int
    why: str = ""
    """For ``state``: which run set its generator back where the other did not, or that only the order is another."""
    shifted: tuple[Event | None, Event | None] = (None, None)
    """The first draws, of reference and candidate, that see another state for it."""


def draws(views: Iterable[StepView]) -> list[Event]:
    """The events of some steps that moved a generator, in order."""
    return [event for view in views for event in view.where(view.is_draw)]


def same_draws(reference: list[Event], candidate: list[Event]) -> bool:
    """Whether both runs made the same draws, through whatever generator objects."""
    return Counter(map(_full, reference)) == Counter(map(_full, candidate))


def _full(event: Event) -> Key:
    assert event.draw is not None
    return (event.draw.before, base_name(event.op), event.args, result(event))


def _place(event: Event) -> Key:
    return (base_name(event.op), event.args, tuple(write.spec for write in event.writes))


def draw_change(reference: Side, candidate: Side, step: int) -> DrawChange | None:
    """The first difference between the draws that two runs made up to a step; None if there is none."""
    theirs, mine = _Draws(reference, step), _Draws(candidate, step)
    live = theirs.live, mine.live
    theirs.list, mine.list = _not_undone(*live, mine.made), _not_undone(*live[::-1], theirs.made)
    change = first_change(theirs, mine)
    if change is not None and change.what == "state" and not change.why:
        change = replace(change, why=_set_back(theirs, mine))
    if change is None:
        theirs.list, mine.list = theirs.made, mine.made
        change = first_change(theirs, mine)
    if change is None or change.what == "arguments":
        return change
    sides = zip(change.shifted, (reference, candidate), strict=True)
    left, right = (event or _next_draw(side, step) for event, side in sides)
    return replace(change, shifted=(left, right))


def _next_draw(side: Side, step: int) -> Event | None:
    """The first draw after a step, if it is near."""
    for later in [s for s in side.steps if s > step][:_NEAR]:
        view = side.view(later)
        found = next(iter(view.where(view.is_draw)), None)
        if found is not None:
            return found
    return None


def _not_undone(live: list[Event], others: list[Event], made: list[Event]) -> list[Event]:
    """The live draws of one run without those that the other made too but undid: these were neither left out nor
    inserted, only one of the runs set its generator back.
    """
    surplus = Counter(map(_key, live)) - Counter(map(_key, others))
    undone = Counter(map(_key, made)) - Counter(map(_key, others))
    left = []
    for event in live:
        key = _key(event)
        if surplus[key] > 0 and undone[key] > 0:
            surplus[key] -= 1
            undone[key] -= 1
        else:
            left.append(event)
    return left


def _key(event: Event) -> Key:
    return (event.step, _state(event), *_place(event))


def _set_back(theirs: _Draws, mine: _Draws) -> str:
    for run, side, other in ((mine, "reference", "candidate"), (theirs, "candidate", "reference")):
        kept = {event.index for event in run.list}
        event = next((event for event in run.live if event.index not in kept), None)
        if event is not None:
            return f": the {side} went back to before {event.op} of step {event.step}, the {other} did not"
    return ""


class _Draws:
    """The draws of one run up to some step: all that were ``made``, those that were not undone as inside ``fork_rng``
    (``live``), and those that are compared (``list``).
    """

    def __init__(self, side: Side, step: int) -> None:
        self._side, self._last = side, step
        self.made = draws(side.views(step))
        values = (e for view in side.views(step) for e in view.where(view.is_contract) if e.op == "rng")
        self.live = live_draws(self.made, {e.reads[0].value for e in values})
        self.list = self.live

    def context(self, event: Event) -> tuple[object, ...]:
        """What surrounds a draw: its line of source, its module, the operators before and after it, and the first one
        that reads it.
        """
        view = self._side.view(event.step)
        readers = view.link_rows[view.arrays.writers == event.index]
        readers = readers[view.is_op[readers] & (readers > view.row(event))]
        before, after = self._side.event(event.index - 1), self._side.event(event.index + 1)
        if after is not None and after.step > self._last:
            after = None
        return (
            _place(view.event(int(readers[0]))) if len(readers) else None,
            _source(event),
            event.module,
            before and (before.op, before.module),
            after and (after.op, after.module),
        )


def _source(event: Event) -> list[str]:
    """Function and text of the innermost line of the user's; not its number, which moves when others are edited."""
    return (event.stack or "").partition("\n")[0].split("\t")[2:]


def live_draws(made: Sequence[Event], states: Iterable[int]) -> list[Event]:
    """The draws that led each generator to where it is in the end: back from there, from state to state.

    ``states`` are the fingerprints of generators seen in the contract. A draw inside ``fork_rng`` is left out, since
    the generator went back to before it. Where nothing led to a state, the generator was seeded: what was drawn before
    it was first in that state follows.
    """
    by_generator: dict[int, list[Event]] = defaultdict(list)
    for event in made:
        assert event.draw is not None
        by_generator[event.draw.generator].append(event)
    known = frozenset(states)
    live = [event for mine in by_generator.values() for event in _live(mine, known)]
    return sorted(live, key=lambda e: e.index)


def _live(made: list[Event], states: frozenset[int]) -> list[Event]:
    led_to: dict[int, list[int]] = defaultdict(list)
    first_from: dict[int, int] = {}
    for position, event in enumerate(made):
        assert event.draw is not None
        first_from.setdefault(event.draw.before, position)
        if not event.flags & RECOMPUTED:
            led_to[event.draw.after].append(position)
    for position, event in enumerate(made):  # a recomputed draw counts where no other led to its state
        assert event.draw is not None
        if event.flags & RECOMPUTED and event.draw.after not in led_to:
            led_to[event.draw.after].append(position)
    position = _last(made, states)
    live = []
    while position >= 0:
        event = made[position]
        assert event.draw is not None
        live.append(event)
        earlier = led_to.get(event.draw.before, [])
        number = bisect_left(earlier, position)
        position = earlier[number - 1] if number else first_from[event.draw.before] - 1
    return live[::-1]


def _last(made: list[Event], states: frozenset[int]) -> int:
    """The last draw after which the generator was left as it is: a later one was undone."""
    ends = {event.draw.after for event in made if event.draw is not None} & states
    for position in range(len(made) - 1, -1, -1):
        draw = made[position].draw
        if draw is not None and draw.after in ends:
            return position
    return len(made) - 1


def first_change(reference: _Draws, candidate: _Draws) -> DrawChange | None:
    """The first difference between two sequences of draws; None if there is none."""
    theirs, mine = reference.list, candidate.list
    same = 0
    for other, event in zip(theirs, mine, strict=False):
        if _state(other) != _state(event) or _place(other) != _place(event) or other.step != event.step:
            break
        same += 1
    if same == len(theirs) == len(mine):
        return None
    end = mine[-1].index + 1 if mine else 0
    at = mine[same].index if same < len(mine) else end
    left, right = theirs[same : same + _WINDOW], mine[same : same + _WINDOW]
    if left and right and _state(left[0]) != _state(right[0]):
        return DrawChange("state", right[0], "candidate", left[0], at, shifted=(left[0], right[0]))
    if left and right:
        moved = _moved(theirs[same:], mine[same:])
        if moved is not None:
            why = ": both runs make this draw, in another order"
            return DrawChange("state", right[0], "candidate", moved, at, why, (moved, right[0]))
    kind = _kind(left, right)
    if kind == "insert":
        position = _which(candidate, reference, same)
        pair = (_at(theirs, position), _at(mine, position + 1))
        return DrawChange("inserted", mine[position], "candidate", None, mine[position].index, shifted=pair)
    if kind == "delete":
        position = _which(reference, candidate, same)
        at = mine[position].index if position < len(mine) else end
        pair = (_at(theirs, position + 1), _at(mine, position))
        return DrawChange("missing", theirs[position], "reference", None, at, shifted=pair)
    other, event = left[0], right[0]
    same_inputs = base_name(event.op) == base_name(other.op) and read_values(event) == read_values(other)
    return DrawChange("arguments" if same_inputs else "inserted", event, "candidate", other, at)


def _moved(theirs: list[Event], mine: list[Event]) -> Event | None:
    """The reference's draw like the candidate's first, if both runs make their first draws as often in that step."""
    counts = [Counter(map(_call, made)) for made in (theirs, mine)]
    if any(counts[0][_call(event)] != counts[1][_call(event)] for event in (theirs[0], mine[0])):
        return None
    wanted = _call(mine[0])
    return next(event for event in theirs if _call(event) == wanted) if _call(theirs[0]) != wanted else None


def _call(event: Event) -> Key:
    return (event.step, *_place(event))


def _at(made: list[Event], position: int) -> Event | None:
    return made[position] if position < len(made) else None


def _state(event: Event) -> int:
    assert event.draw is not None
    return event.draw.before


def _kind(left: list[Event], right: list[Event]) -> str:
    """What happened at the beginning of two sequences."""
    matcher = SequenceMatcher(None, [*map(_call, left)], [*map(_call, right)], autojunk=False)
    return next(tag for tag, *_ in matcher.get_opcodes() if tag != "equal")


def _which(longer: _Draws, shorter: _Draws, position: int) -> int:
    """Among a run of draws of one kind that ends at a position, the one too many: the one without which their
    surroundings fit best.
    """
    mine, others = longer.list, shorter.list
    wanted = (mine[position].step, _place(mine[position]))
    first = position
    while first > 0 and (mine[first - 1].step, _place(mine[first - 1])) == wanted:
        first -= 1
    if first == position:
        return position
    run = [longer.context(event) for event in mine[first : position + 1]]
    rest = [shorter.context(event) for event in others[first:position]]

    def fit(left_out: int) -> int:
        kept = run[:left_out] + run[left_out + 1 :]
        return sum(a == b for pair in zip(kept, rest, strict=True) for a, b in zip(*pair, strict=True))

    return first + max(range(len(run)), key=lambda n: (fit(n), n))
