"""The columns of a step as arrays."""

from __future__ import annotations

from hypothesis import given

from opguard_ci.trace.arrays import StepArrays
from opguard_ci.trace.model import StepTable
from tests.strategies import step_tables


@given(step_tables())
def test_events_of_arrays_are_those_of_the_table(table: StepTable) -> None:
    """And the columns come back as they were."""
    arrays = StepArrays.of(table)
    assert [arrays.event(row) for row in range(len(arrays))] == list(table.events())
    assert arrays.table() == table
