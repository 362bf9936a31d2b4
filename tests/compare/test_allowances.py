"""What a tolerance lets pass, and that no recipe can widen its own."""

from __future__ import annotations

import struct
from typing import Any

from opguard_ci import rtol, ulp
from opguard_ci.compare import compare_traces

from .build import contract, op, trace
from .running import MemoryTrace

SPEC = "float32[]"
NUMBERS = {90: 1.0, 91: 1.0000001192092896, 92: 1.0000002384185791}  # each an ulp from the one before


def run(loss: int, tolerance: dict[str, Any] | None = None, **values: int) -> MemoryTrace:
    """A run of one step that made a loss, and kept the numbers that its tolerance names."""
    made = op("loss", [10], [loss], spec=SPEC)
    events = [
        contract("loss", "loss", loss, spec=SPEC),
        *(contract("value", n, v, spec=SPEC) for n, v in values.items()),
    ]
    limits = {name: limit.to_json() for name, limit in (tolerance or {}).items()}
    found = trace([made, *events], tolerance=limits)
    if tolerance:
        found.known = {(value, SPEC): struct.pack("=f", number) for value, number in NUMBERS.items()}
    return found


def test_a_loss_within_tolerance_is_equivalent():
    """The largest deviation is told."""
    verdict = compare_traces(run(90, {"loss": ulp(2)}), run(92, {"loss": ulp(2)})).to_json()
    assert verdict["verdict"] == "equivalent"
    assert verdict["tolerance"]["num_within"] == 1
    largest = verdict["tolerance"]["largest"]
    assert (largest["name"], largest["step"], largest["allowed"], largest["max_ulp"]) == ("loss", 0, "ulp(2)", 2)


def test_a_loss_beyond_it_diverges():
    """As it would without a tolerance."""
    verdict = compare_traces(run(90, {"loss": ulp(1)}), run(92, {"loss": ulp(1)})).to_json()
    assert (verdict["verdict"], verdict["tolerance"]["num_within"]) == ("diverged", 0)
    assert [value["name"] for value in verdict["contract"]] == ["loss"]


def test_without_a_tolerance_every_bit_counts():
    """And the verdict has no word of one."""
    verdict = compare_traces(run(90), run(91)).to_json()
    assert verdict["verdict"] == "diverged"
    assert "tolerance" not in verdict


def test_a_value_that_is_not_named_counts_bit_by_bit():
    """Beside one that is within its tolerance."""
    verdict = compare_traces(run(90, {"loss": ulp(2)}, other=20), run(91, {"loss": ulp(2)}, other=21)).to_json()
    assert verdict["verdict"] == "diverged"
    assert [value["name"] for value in verdict["contract"]] == ["other"]


def test_the_candidate_cannot_widen_it():
    """Nor can the reference alone allow anything: only what both recipes allow is, and the notes say so."""
    for left, right in (({"loss": ulp(1)}, {"loss": ulp(9)}), (None, {"loss": ulp(9)}), ({"loss": ulp(9)}, None)):
        verdict = compare_traces(run(90, left), run(92, right)).to_json()
        assert verdict["verdict"] == "diverged"
        assert "only what both allow is" in verdict["notes"][0]


def test_the_stricter_of_two_is_named():
    """Where both allow it."""
    verdict = compare_traces(run(90, {"loss": rtol(0.5)}), run(92, {"*": ulp(3)})).to_json()
    assert verdict["verdict"] == "equivalent"
    assert verdict["tolerance"]["largest"]["allowed"] == "ulp(3)"


def test_values_without_numbers_are_not_judged_by_them():
    """A run that kept none, or a value of another shape."""
    left, right = run(90, {"loss": ulp(2)}), run(92, {"loss": ulp(2)})
    right.known = {}
    assert compare_traces(left, right).verdict == "diverged"


def test_the_larger_share_is_the_largest_deviation():
    """Of several values, the one that comes nearest to its limit."""
    limits = {"loss": ulp(100), "b": ulp(1)}
    tolerance = compare_traces(run(90, limits, b=90), run(92, limits, b=91)).tolerance
    assert (tolerance["num_within"], tolerance["largest"]["name"]) == (2, "b")
