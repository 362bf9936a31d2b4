"""Random draws of two runs are laid side by side by the states from which they were made."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.compare.draws import DrawChange, draw_change, draws, live_draws, same_draws
from opguard_ci.compare.traces import side_of
from opguard_ci.trace.model import RECOMPUTED, Event

from .build import contract, op, trace


def _made(*events: Event) -> list[Event]:
    """The draws of a run of one step."""
    return draws(side_of(trace(events)).views(0))


def _run(*made: tuple[int, int, str], end: int = 0) -> list[Event]:
    """Draws by state before and after, and a shape to tell them apart."""
    events = [op("rand", [], [100 + after], draw=(before, after), spec=spec) for before, after, spec in made]
    return [*events, contract("rng", "cpu", end or made[-1][1])]


def _change(reference: list[Event], candidate: list[Event]) -> DrawChange | None:
    return draw_change(side_of(trace(reference)), side_of(trace(candidate)), 0)


def _where(change: DrawChange | None) -> tuple[str, int, str] | None:
    return None if change is None else (change.what, change.event.index, change.side)


_CHAINS = st.lists(st.sampled_from(["float32[5]", "float32[6]", "float32[7]"]), min_size=1, max_size=8)


def _chain(shapes: list[str]) -> list[tuple[int, int, str]]:
    """Draws in sequence: the state after one follows from the state before and the shape."""
    made, state = [], 1
    for shape in shapes:
        after = state * 10 + int(shape[8])
        made.append((state, after, shape))
        state = after
    return made


@given(_CHAINS)
def test_equal_sequences_have_no_change(shapes: list[str]) -> None:
    """The same draws twice."""
    assert _change(_run(*_chain(shapes)), _run(*_chain(shapes))) is None


@given(_CHAINS, st.data())
def test_an_inserted_draw_of_another_shape_is_found(shapes: list[str], data: st.DataObject) -> None:
    """One more draw, of a shape that no other has: exactly that one, and from the other side it is missing."""
    place = data.draw(st.integers(0, len(shapes)))
    longer = [*shapes[:place], "float32[8]", *shapes[place:]]
    assert _where(_change(_run(*_chain(shapes)), _run(*_chain(longer)))) == ("inserted", place, "candidate")
    assert _where(_change(_run(*_chain(longer)), _run(*_chain(shapes)))) == ("missing", place, "reference")


@given(_CHAINS, st.data())
def test_the_draws_that_it_shifts_are_named(shapes: list[str], data: st.DataObject) -> None:
    """Of both sides the one that follows: the same draw, from another state; the next step's if there is none."""
    place = data.draw(st.integers(0, len(shapes)))
    longer = [*shapes[:place], "float32[8]", *shapes[place:]]
    for swapped in (False, True):
        made = [_chain(shapes), _chain(longer)]
        runs = [[_run(*chain), _run((chain[-1][1], 10**9, "float32[9]"))] for chain in made]
        change = draw_change(*(side_of(trace(*run)) for run in (runs[::-1] if swapped else runs)), 0)
        assert change is not None
        reference, candidate = change.shifted
        assert reference is not None and candidate is not None
        wanted = shapes[place] if place < len(shapes) else "float32[9]"
        assert (reference.writes[0].spec, candidate.writes[0].spec) == (wanted, wanted)
        assert reference.draw is not None and candidate.draw is not None
        assert reference.draw.before != candidate.draw.before


@given(_CHAINS, st.data())
def test_an_undone_draw_is_no_change(shapes: list[str], data: st.DataObject) -> None:
    """A draw after which the generator went back, wherever it stands."""
    chain = _chain(shapes)
    place = data.draw(st.integers(0, len(shapes)))
    state = chain[place][0] if place < len(chain) else chain[-1][1]
    undone = (state, 999_999_999, "float32[8]")
    events = _run(*chain[:place], undone, *chain[place:], end=chain[-1][1])
    assert [e.draw.after for e in live_draws(_made(*events), {chain[-1][1]}) if e.draw] == [
        after for _, after, _ in chain
    ]


@given(_CHAINS)
def test_another_seed_is_another_state(shapes: list[str]) -> None:
    """The first draw is told as made from another state."""
    other = [(before + 5, after + 5, shape) for before, after, shape in _chain(shapes)]
    assert _where(_change(_run(*_chain(shapes)), _run(*other))) == ("state", 0, "candidate")


def test_a_recomputed_draw_gives_way_to_the_first() -> None:
    """Checkpointing draws again what was drawn before: the first time counts."""
    first, again = op("rand", draw=(1, 2)), op("rand", draw=(1, 2), flags=RECOMPUTED)
    made = _made(first, again, op("rand", draw=(2, 3)))
    assert [event.index for event in live_draws(made, {3})] == [0, 2]


def test_draws_before_a_seed_are_not_lost() -> None:
    """Where nothing led to a state, the draws before it follow."""
    made = _made(op("rand", draw=(1, 2)), op("rand", draw=(7, 8)))
    assert [event.index for event in live_draws(made, {8})] == [0, 1]


def test_the_one_too_many_among_its_like_is_told_by_what_reads_it() -> None:
    """Of three equal draws one is read by nobody: that one was inserted."""
    reads = [op("mul", [102], [20]), op("add", [103], [21])]
    reference = [op("rand", [], [102], draw=(1, 2)), reads[0], op("rand", [], [103], draw=(2, 3)), reads[1]]
    candidate = [
        op("rand", [], [102], draw=(1, 2)), op("mul", [102], [20]), op("rand", [], [103], draw=(2, 3)),
        op("rand", [], [104], draw=(3, 4)), op("add", [104], [22]),
    ]  # fmt: skip
    assert _where(_change(reference, candidate)) == ("inserted", 2, "candidate")


def test_other_arguments_from_the_same_state() -> None:
    """The draw itself is made otherwise."""
    reference, candidate = op("bernoulli", draw=(1, 2), extra="p=0.1"), op("bernoulli", draw=(1, 3), extra="p=0.2")
    assert _where(_change([reference], [candidate])) == ("arguments", 0, "candidate")


def test_only_what_moved_a_generator_is_a_draw() -> None:
    """An operator that left the state alone drew nothing."""
    assert _made(op("f", draw=(1, 1)), op("g"), op("h", draw=(1, 2)))[0].op == "aten.h.default"


def test_same_draws_look_at_states_and_results() -> None:
    """Through whatever generator and in whatever order, but from the same states and with the same results."""
    one, two = op("rand", [], [20], draw=(1, 2)), op("rand", [], [21], draw=(5, 6))
    assert same_draws([one, two], [two, one])
    assert not same_draws([one], [op("rand", [], [22], draw=(1, 2))])


def test_of_equal_draws_the_line_of_source_tells_which_is_new() -> None:
    """A loop over another loader draws as the loop that was there; its line moved, and is known by its text."""

    def drawn(before: int, after: int, line: int, text: str) -> Event:
        made = op("random_", [], [100 + after], draw=(before, after))
        return replace(made, stack=f"train.py\t{line}\ttrain\t{text}")

    reference = [drawn(1, 2, 7, "it = iter(loader)"), contract("rng", "cpu", 2)]
    candidate = [drawn(1, 2, 7, "for x in valid:"), drawn(2, 3, 9, "it = iter(loader)"), contract("rng", "cpu", 3)]
    change = _change(reference, candidate)
    assert _where(change) == ("inserted", 0, "candidate")
    assert change is not None and [event and event.index for event in change.shifted] == [0, 1]
    assert _where(_change(candidate, reference)) == ("missing", 0, "reference")
