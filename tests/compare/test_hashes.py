"""Hashes of events: as equal as the keys that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from opguard_ci.compare.align import place
from opguard_ci.compare.hashes import Hasher, Words
from opguard_ci.compare.values import base_name, call_key, full_key, read_values, result
from opguard_ci.trace.arrays import StepArrays
from opguard_ci.trace.model import Event, StepTable
from tests.strategies import step_tables


def _value(event: Event) -> Any:
    return (event.op, event.args, read_values(event), *(r.spec for r in event.reads))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("call", call_key),
        ("full", full_key),
        ("result", result),
        ("base", lambda event: base_name(event.op)),
        ("form", lambda event: place(event)[:3]),
        ("place", place),
        ("value", _value),
    ],
)
@settings(max_examples=40)
@given(left=step_tables(), right=step_tables())
def test_hashes_are_equal_where_keys_are(
    name: str, key: Callable[[Event], Any], left: StepTable, right: StepTable
) -> None:
    """Also of two runs that met their strings in another order."""
    hashes: list[int] = []
    keys: list[Any] = []
    for table in (left, right):
        found: Words = getattr(Hasher().hashes(StepArrays.of(table)), name)
        chosen = [event for event in table.events() if name != "value" or event.kind == "contract"]
        assert len(found) == len(chosen)
        hashes += found.tolist()
        keys += [key(event) for event in chosen]
    for mine, its in zip(hashes, keys, strict=True):
        assert [other == mine for other in hashes] == [other == its for other in keys]
