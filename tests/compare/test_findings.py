"""What one run shows by itself."""

from __future__ import annotations

from opguard_ci.compare import single_run_findings
from opguard_ci.trace.model import HIDDEN, OVER, Event, Write

from .build import SPEC, contract, op, read, trace


def _hidden(name: str = "f", module: str | None = None) -> Event:
    return op(name, [10, 11], [20, Write(12, SPEC, ~1, HIDDEN)], module=module)


def test_overwritten_memory_and_hidden_mutation() -> None:
    """Both are told with operator, step and a sentence."""
    run = trace([op("f", [10], [20])], [op("g", [read(21, OVER, writers=(0,))], [30]), _hidden("c")])
    found = single_run_findings(run)
    assert [(f["cause"], f["op"], f["step"], f["event"]) for f in found] == [
        ("overwritten", "aten.g.default", 1, 1),
        ("hidden-mutation", "aten.c.default", 1, 2),
    ]
    assert found[1]["detail"] == "t1 is read-only by its schema but was changed"


def test_torch_s_own_running_statistics_are_no_finding() -> None:
    """Batch norm changes arguments that its schema calls read-only, in every run."""
    assert single_run_findings(trace([_hidden("native_batch_norm")])) == []


def test_one_finding_per_operator_and_module() -> None:
    """The first of each, and not more than twenty."""
    assert len(single_run_findings(trace([_hidden(module="a"), _hidden(module="a"), _hidden(module="b")]))) == 2
    assert len(single_run_findings(trace([_hidden(f"f{n}") for n in range(50)]))) == 20


def test_copies_and_contract_values_are_no_finding() -> None:
    """The first operator that uses the bytes is the one to name."""
    copy = op("clone", [read(21, OVER, writers=(0,))], [21], kind="copy")
    value = contract("buffer", "a", 21)
    assert single_run_findings(trace([op("f", [10], [20]), copy, value])) == []


def test_a_contract_level_trace_has_none() -> None:
    """It saw no operator."""
    assert single_run_findings(trace([_hidden()], level="contract")) == []
