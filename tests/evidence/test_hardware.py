"""A run that differs alone, in a bit: the machine is suspected, with element and bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opguard_ci.evidence.hardware import odd_run


def traces(text: str) -> Any:
    """One trace per letter; equal letters have equal digests."""
    return [SimpleNamespace(manifest={"steps": [{"digests": {"contract": letter}}]}) for letter in text]


@pytest.mark.parametrize(
    ("runs", "odd"),
    [
        ("AAABA", 3),
        ("BAAAA", 0),
        ("AAAAAAB", 6),
        ("AAAAA", None),
        ("AABB A"[:5], None),
        ("AABBA", None),
        ("AABCA", None),
        ("AAAB", None),
    ],
)
def test_one_run_alone_against_all_others(runs: str, odd: int | None):
    """Of at least five; two of a kind, or three kinds, are no accident of the machine."""
    assert odd_run(traces(runs)) == odd
