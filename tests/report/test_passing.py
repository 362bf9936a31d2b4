from __future__ import annotations

from typing import Any

from opguard_ci.report.layout import plain
from opguard_ci.report.passing import passing_lines


def passing(op: str, rank: int = 0, **changes: Any) -> dict[str, Any]:
    """An operator of a block that replaced another."""
    block = {"before": ["aten.sin.default"], "after": ["aten.exp.default", "aten.tanh.default"]}
    found = {
        "step": 0,
        "phase": "forward",
        "op": op,
        "module": "m",
        "rank": rank,
        "cause": "code",
        "detail": "other",
    }
    return {**found, **block, **changes}


def rows(*transient: dict[str, Any]) -> list[list[str]]:
    """The title, and the words of each row."""
    return [line.split() for line in plain(passing_lines(transient)).splitlines() if line]


EXP, TANH = "aten.exp.default", "aten.tanh.default"


def test_a_replaced_block_is_one_row() -> None:
    """Whatever number of its operators made new values; a block of the same kind that comes again is another."""
    row = ["step", "0", "forward", EXP, "and", "1", "more", "m", "code:", "other"]
    assert rows(passing(EXP), passing(TANH)) == [["Differed", "in", "passing", "(1)"], row]
    assert rows(passing(EXP), passing(TANH), passing(EXP), passing(TANH))[1:] == [row, row]


def test_other_changes_are_rows_of_their_own() -> None:
    """Of other operators, modules, steps and causes."""
    kernel = {"cause": "kernel", "before": [], "after": []}
    others = (passing(TANH, step=1), passing(TANH, module="n"), passing(EXP, **kernel), passing(TANH, **kernel))
    assert rows(passing(EXP), *others)[0][-1] == "(5)"


def test_ranks_that_do_the_same_share_a_row() -> None:
    """It names them; with one rank there is nothing to name."""
    (_, row) = rows(passing(EXP), passing(EXP, 1), passing(EXP, 3))
    assert row[-4:] == ["(rank", "0,", "1,", "3)"]
    assert "rank" not in " ".join(rows(passing(EXP))[1])


def test_many_rows_are_counted() -> None:
    """Five, then a number."""
    assert rows(*(passing(EXP, step=step) for step in range(9)))[-1] == ["and", "4", "more"]
