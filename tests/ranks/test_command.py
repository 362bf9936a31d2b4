"""Several ranks on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import opguard_json

from .conftest import HERE

pytestmark = pytest.mark.usefixtures("shared_servers")


def test_a_recipe_says_its_ranks(tmp_path: Path) -> None:
    """``ranks=`` of a recipe is how many processes run it; the trace is read rank by rank."""
    done, document = opguard_json("run", "programs.py:ddp", "-o", str(tmp_path / "trace"), cwd=HERE)
    assert (done, document["verdict"]) == (0, "ok"), document
    files = sorted(file.name for file in (tmp_path / "trace").glob("*.arrows"))
    assert files == ["events-0.arrows", "events-1.arrows"]
    done, document = opguard_json("show", str(tmp_path / "trace"), "--rank", "1", "--search", "c10d.", cwd=HERE)
    assert (done, document["rank"]) == (0, 1)


@pytest.mark.parametrize("count", ["0", "65", "two"])
def test_numbers_of_ranks(count: str) -> None:
    """A number that cannot be is a usage error."""
    assert opguard_json("run", "programs.py:ddp", "-o", "unused", "--ranks", count, cwd=HERE)[0] == 2
