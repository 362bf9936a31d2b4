"""How far a contract value may be from the reference's: what can be said, kept and read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import opguard_ci
from opguard_ci import atol, recipe, rtol, ulp
from opguard_ci.errors import UsageError
from opguard_ci.recipe import options_of
from opguard_ci.tolerance import Tolerance, matching, parse_tolerances, shown

POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
TOLERANCES = st.one_of(
    st.integers(1, 2**40).map(ulp),
    POSITIVE.map(atol),
    POSITIVE.map(rtol),
    st.builds(lambda r, a: rtol(r, atol=a), POSITIVE, POSITIVE),
)


@given(st.dictionaries(st.text(max_size=5), TOLERANCES, max_size=3))
def test_a_manifest_gives_back_what_was_put_into_it(limits: dict[str, Tolerance]):
    """Also the order of the patterns, which decides which one counts."""
    assert list(parse_tolerances({name: limit.to_json() for name, limit in limits.items()}).items()) == [
        *limits.items()
    ]


@pytest.mark.parametrize(
    "found",
    [
        [],
        {"loss": 2},
        {"loss": {}},
        {"loss": {"ulp": 0}},
        {"loss": {"ulp": 1.5}},
        {"loss": {"ulp": True}},
        {"loss": {"ulp": 1, "rtol": 0.1}},
        {"loss": {"rtol": float("nan")}},
        {"loss": {"rtol": -1}},
        {"loss": {"rtol": float("inf")}},
        {"loss": {"percent": 1}},
    ],
)
def test_a_strangers_manifest_is_checked(found: Any):
    """What is no tolerance is refused, before anything is compared by it."""
    with pytest.raises(ValueError, match=r"."):
        parse_tolerances(found)


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
def test_ulp_takes_a_whole_number(number: Any):
    """From 1 on."""
    with pytest.raises(ValueError, match="whole number"):
        ulp(number)


@pytest.mark.parametrize("number", [0, -1e-6, float("inf"), float("nan"), True, "1e-6"])
def test_a_fraction_or_distance_is_finite_and_above_0(number: Any):
    """A tolerance that allows everything, or nothing, is none."""
    for make in (rtol, atol):
        with pytest.raises(ValueError, match="above 0"):
            make(number)


def test_it_is_shown_as_it_is_written():
    """Every report prints it."""
    limits = {"loss": ulp(2), "model.*": rtol(1e-6, atol=1e-8), "x": atol(0.5), "y": rtol(1e-3)}
    assert shown(limits) == "loss ulp(2), model.* rtol(1e-06, atol=1e-08), x atol(0.5), y rtol(0.001)"


def test_the_first_pattern_that_fits_counts():
    """A star stands for anything, dots too; case matters."""
    limits = {"model.head.*": ulp(1), "model.*": ulp(9)}
    assert matching(limits, "model.head.weight") == ("model.head.*", ulp(1))
    assert matching(limits, "model.blocks.0.weight") == ("model.*", ulp(9))
    assert matching(limits, "Model.head.weight") is None


def test_a_recipe_carries_it():
    """And says what else it was given."""

    @recipe(steps=1, tolerance={"loss": opguard_ci.ulp(2)})
    def train() -> None: ...

    options = options_of(train)
    assert options is not None
    assert options.tolerance == {"loss": ulp(2)}
    assert options_of(recipe(**options.as_arguments())(lambda: None)) == options


@pytest.mark.parametrize("tolerance", [{"loss": 2}, {"loss": 1e-6}, {1: ulp(1)}])
def test_a_recipe_takes_no_bare_numbers(tolerance: Any):
    """A number could be a fraction, a distance or a count of ulps."""
    with pytest.raises(UsageError, match="tolerance must map"):
        recipe(steps=1, tolerance=tolerance)


@pytest.mark.parametrize("unstable", [["loss"], {"loss": ""}, {"loss": None}, {"": "why"}])
def test_what_is_unstable_needs_a_reason(unstable: Any):
    """Whoever reads the report asks for it."""
    with pytest.raises(UsageError, match="unstable must map patterns to reasons"):
        recipe(steps=1, unstable=unstable)
