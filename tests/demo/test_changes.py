"""The changes that the demo plants."""

from __future__ import annotations

import ast

import pytest

from opguard_ci.demo.changes import CHANGES, FAULTS, REFACTORS, project
from tests.demo.planted import plant

KINDS = [change.kind for change in CHANGES]


@pytest.mark.parametrize("seed", range(2 * len(CHANGES)), ids=lambda seed: f"{seed}-{KINDS[seed % len(KINDS)]}")
def test_a_seed_changes_one_file_and_nothing_else(seed: int):
    """Before is the project, after differs in the file of the change, and both are Python."""
    planted = plant(seed)
    assert planted.files_before == project()
    changed = [name for name, text in planted.files_after.items() if text != planted.files_before[name]]
    assert changed == [planted.change.file]
    assert planted.files_after.keys() == planted.files_before.keys()
    ast.parse(planted.files_after[planted.change.file])
    line = planted.files_before[planted.change.file].splitlines()[planted.line - 1]
    assert not planted.removed or line == planted.removed[0] or planted.change.kind == "reorder"


def test_faults_change_one_line():
    """A fault is one line replaced or added; its old text is in its file exactly once."""
    for seed, change in enumerate(FAULTS):
        planted = plant(seed)
        assert planted.change is change
        assert len(planted.added) == 1
        assert len(planted.removed) <= 1
        assert planted.files_before[change.file].count(change.old) == 1


def test_seeds_go_through_all_kinds():
    """As many seeds as there are kinds plant each kind once; a seed always plants the same."""
    assert [plant(seed).change for seed in range(len(CHANGES))] == [*FAULTS, *REFACTORS]
    assert plant(5) == plant(5)
    assert len(FAULTS) >= 10
    assert len(REFACTORS) >= 2


def test_found_means_the_planted_operator_or_a_pass():
    """A fault is found where the verdict names its operator; a refactor where nothing diverged."""
    fault, refactor = plant(0), plant(len(FAULTS))
    op = fault.change.op
    diverged = {"verdict": "diverged", "first_divergence": {"op": op}}
    elsewhere = {"verdict": "diverged", "first_divergence": {"op": "aten.relu.default"}}
    in_block = {"verdict": "diverged", "first_divergence": {"op": "aten.relu.default", "computes": op}}
    equivalent = {"verdict": "equivalent", "first_divergence": None}
    assert [fault.is_found_in(v) for v in (diverged, elsewhere, in_block, equivalent)] == [True, False, True, False]
    assert [refactor.is_found_in(v) for v in (diverged, equivalent)] == [False, True]
