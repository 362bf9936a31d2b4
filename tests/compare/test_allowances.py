"""What a tolerance lets pass, what is declared unstable, and that no recipe can widen its own."""

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
        assert "only what both say counts" in verdict["notes"][0]


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


THREADS = {"unstable": {"aux": "summed by threads"}}
RACY = {"unstable": {"aten.racy.*": "adds in the order of the threads"}}


def racy_run(
    other: int, *, unstable: Any = RACY, other_loss: int = 0, other_aux: int = 0, later: int = 0
) -> MemoryTrace:
    """Two steps; ``racy`` makes ``weight`` from the same inputs, ``loss`` comes from something else."""
    return trace(
        [
            op("loss", [10], [20 + other_loss]),
            op("racy", [11], [30 + other]),
            op("update", [30 + other], [40 + other]),
            contract("loss", "loss", 20 + other_loss),
            contract("parameter", "weight", 40 + other),
            contract("value", "aux", 60 + other_aux),
        ],
        [
            op("update", [40 + other, 12], [50 + other + later]),
            contract("parameter", "weight", 50 + other + later),
        ],
        **unstable,
    )


def test_a_value_that_is_declared_unstable_is_not_judged():
    """The rest is, and the reason is told."""
    verdict = compare_traces(racy_run(0, unstable=THREADS), racy_run(0, unstable=THREADS, other_aux=1)).to_json()
    assert verdict["verdict"] == "equivalent"
    left_out = {"step": 0, "name": "aux", "pattern": "aux", "reason": "summed by threads"}
    assert verdict["declared_unstable"]["not_judged"] == [left_out]
    other = racy_run(0, unstable=THREADS, other_aux=1, other_loss=1)
    found = compare_traces(racy_run(0, unstable=THREADS), other).to_json()
    assert found["verdict"] == "diverged"
    assert [value["name"] for value in found["contract"]] == ["loss"]


def test_what_follows_from_an_operator_that_is_declared_unstable_is_not_judged():
    """In that step and in later ones; it is no kernel to warn of, either."""
    verdict = compare_traces(racy_run(0), racy_run(1)).to_json()
    assert verdict["verdict"] == "equivalent"
    assert [(e["step"], e["name"]) for e in verdict["declared_unstable"]["not_judged"]] == [
        (0, "weight"),
        (1, "weight"),
    ]
    assert verdict["transient"] == []
    assert not any("Warning" in note for note in verdict["notes"])


def test_what_has_another_origin_is_judged():
    """And the operator that is declared unstable is not blamed for it."""
    found = compare_traces(racy_run(0), racy_run(1, other_loss=1)).to_json()
    assert found["verdict"] == "diverged"
    assert found["first_divergence"]["op"] == "aten.loss.default"
    assert [value["name"] for value in found["contract"]] == ["loss"]


def test_other_inputs_are_no_instability():
    """An operator that is declared unstable and reads something else is judged like any other."""
    reference = trace([op("racy", [11], [30]), contract("parameter", "weight", 30)], **RACY)
    candidate = trace([op("racy", [12], [31]), contract("parameter", "weight", 31)], **RACY)
    assert compare_traces(reference, candidate).verdict == "diverged"


def test_one_recipe_alone_declares_nothing():
    """A change cannot declare its own difference unstable."""
    for left, right in ((RACY, {}), ({}, RACY)):
        verdict = compare_traces(racy_run(0, unstable=left), racy_run(1, unstable=right)).to_json()
        assert verdict["verdict"] == "diverged"
        assert "differ in what they declare unstable" in verdict["notes"][0]
