"""Which events of a run may be findings."""

from __future__ import annotations

from hypothesis import given

from opguard_ci.trace.flagged import Flagged
from opguard_ci.trace.model import HIDDEN, OVER, StepTable
from tests.strategies import traces


@given(traces())
def test_the_first_of_each_operator_and_module(tables: list[StepTable]) -> None:
    """Over all steps, and only operators: what the flags of the events say one by one."""
    seen: set[object] = set()
    flagged = Flagged()
    for table in tables:
        expected = []
        for event in table.events():
            flags = any(r.flags & OVER for r in event.reads), any(w.flags & HIDDEN for w in event.writes)
            key = (event.op, event.module, *flags)
            if event.kind == "op" and any(flags) and key not in seen:
                seen.add(key)
                expected.append(event.index)
        assert flagged.events(table) == expected
