"""Runs whose operators were recorded in some steps only: the contract decides everywhere, operators explain inside."""

from __future__ import annotations

from typing import Any

from opguard_ci.compare import compare_traces
from opguard_ci.report.layout import plain
from opguard_ci.report.text import render

from .build import contract, op, trace
from .running import MemoryTrace


def run(*values: int, window: tuple[int, int] | None = None) -> MemoryTrace:
    """A step per value: an operator makes it a loss; outside of the window the operator was not recorded."""
    steps: list[Any] = []
    for step, value in enumerate(values):
        inside = window is None or window[0] <= step <= window[1]
        made = [op("work", [100 + step], [value])] if inside else []
        steps.append([*made, contract("loss", "loss", value)])
    return trace(*steps, window=None if window is None else {"from": window[0], "to": window[1]})


def test_equal_runs_are_identical_whatever_was_recorded():
    """Operators that one side alone recorded are no difference."""
    for window in (None, (1, 2), (0, 0)):
        assert compare_traces(run(10, 11, 12, window=(1, 2)), run(10, 11, 12, window=window)).verdict == "identical"


def test_a_fault_in_the_window_is_explained():
    """Also against a run that recorded all."""
    for window in (None, (1, 2)):
        found = compare_traces(run(10, 11, 12, window=(1, 2)), run(10, 11, 99, window=window)).first_divergence
        assert found is not None
        assert (found["op"], found["step"]) == ("aten.work.default", 2)


def test_a_fault_outside_is_found_by_the_contract():
    """Before the window and after it; the note says how to see its operators."""
    for values, step in (((99, 11, 12), 0), ((10, 11, 99), 2)):
        verdict = compare_traces(run(10, 11, 12, window=(1, 1)), run(*values, window=(1, 1)))
        assert verdict.verdict == "diverged"
        assert verdict.first_divergence is not None
        assert (verdict.first_divergence["step"], verdict.contract[0]["name"]) == (step, "loss")
        assert f"--from-step {step} --to-step {step}" in verdict.notes[-1]
        assert verdict.first_divergence["value"] == "loss"
        (shown,) = verdict.first_divergence["evidence"]["inputs"]
        assert (shown["name"], shown["reference"], shown["candidate"]) == ("loss", f"{10 + step:016x}", f"{99:016x}")
        assert None not in verdict.first_divergence["events"].values()
        text = plain(render({**verdict.to_json(), "target": "train.py"}))
        assert f"diverged: step {step}, forward, loss: state" in text
        assert "value       loss\n" in text
        assert "operator read it" not in text
