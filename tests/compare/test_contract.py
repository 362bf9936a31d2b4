"""Contract values of two runs are compared by name, by place in the optimizer, by value, and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.compare.contract import differences
from opguard_ci.trace.model import Event

from .build import contract

_NAMED = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(10, 14), max_size=6)


def _events(values: dict[str, int], section: str = "parameter", keys: bool = False) -> list[Event]:
    return [
        contract(section, name, value, f"0.0.{n}" if keys else None) for n, (name, value) in enumerate(values.items())
    ]


@given(_NAMED)
def test_equal_values_have_no_difference(values: dict[str, int]) -> None:
    """In whatever order they come."""
    assert differences(_events(values), _events(values)[::-1]) == []


@given(_NAMED, st.booleans())
def test_renamed_values_have_no_difference(values: dict[str, int], keys: bool) -> None:
    """Whether paired by their place in the optimizer or by value."""
    renamed = {f"new.{name}": value for name, value in values.items()}
    assert differences(_events(values, keys=keys), _events(renamed, keys=keys)) == []


@given(_NAMED, st.data())
def test_each_changed_value_is_a_difference(values: dict[str, int], data: st.DataObject) -> None:
    """Named by the reference's name, also where the candidate calls it otherwise."""
    changed = {name: value + data.draw(st.sampled_from([0, 100])) for name, value in values.items()}
    wanted = [name for name in values if values[name] != changed[name]]
    assert [d.name for d in differences(_events(values), _events(changed))] == wanted
    renamed = {f"new.{name}": value for name, value in changed.items()}
    assert [d.name for d in differences(_events(values, keys=True), _events(renamed, keys=True))] == wanted


@given(_NAMED, _NAMED)
def test_differences_are_the_same_from_both_sides(left: dict[str, int], right: dict[str, int]) -> None:
    """As many, and with the sides exchanged."""
    one, two = differences(_events(left), _events(right)), differences(_events(right), _events(left))
    assert len(one) == len(two)
    assert {
        (d.reference and d.reference.args, d.candidate and d.candidate.args)
        for d in one
        if d.name in left and d.name in right
    } == {
        (d.candidate and d.candidate.args, d.reference and d.reference.args)
        for d in two
        if d.name in left and d.name in right
    }


def test_only_gradients_are_soft() -> None:
    """A gradient that differs is noted; a parameter, loss or generator state fails."""
    for section in ("loss", "parameter", "buffer", "optimizer", "rng", "value", "final", "gradient"):
        (found,) = differences([contract(section, "a", 10)], [contract(section, "a", 11)])
        assert found.hard == (section != "gradient")


def test_one_name_twice_in_a_step() -> None:
    """The losses of micro-batches are compared one by one."""
    left, right = (
        [contract("loss", "loss", value) for value in (10, 11)],
        [contract("loss", "loss", value) for value in (10, 12)],
    )
    (found,) = differences(left, right)
    assert found.name == "loss#2"


def test_a_value_of_one_run_only() -> None:
    """No pair by name, place, value or kind: a difference by itself."""
    (found,) = differences([contract("buffer", "a", 10)], [])
    assert (found.name, found.candidate, found.hard) == ("a", None, True)


def test_renamed_and_changed_values_are_paired_in_order() -> None:
    """As many of the same kind on both sides: one difference each, not one missing and one new."""
    (found,) = differences([contract("buffer", "a", 10)], [contract("buffer", "b", 11)])
    assert found.reference is not None and found.candidate is not None


def test_modules_that_are_counted_otherwise() -> None:
    """One module fewer is called: the later ones have other numbers, and are known by their place in the optimizer."""

    def step(*names: str, value: int = 10) -> list[Event]:
        found = []
        for place, name in enumerate(names):
            found += [contract("parameter", f"{name}.weight", value + place, f"0.0.{place}")]
            found += [contract("buffer", f"{name}.mean", 20 + place)] if name != "parameter" else []
            found += [contract("optimizer", f"optimizer.step.{name}.weight", 30 + place, f"0.step.0.{place}")]
        return found

    named, other = step("model", "model.1", "model.2"), step("model", "parameter", "model.1")
    (found,) = differences(named, other)
    assert (found.name, found.reference, found.candidate) == ("model.1.mean", named[4], None)
    (found,) = differences(other, named)
    assert (found.reference, found.candidate) == (None, named[4])
    swapped = step("model.1", "model")
    assert len(differences(step("model", "model.1"), swapped)) == 0
    # Another value at every place: names count.
    assert {d.name for d in differences(step("model", "model.1"), step("model", "model.1", value=50))} == {
        "model.weight",
        "model.1.weight",
    }
