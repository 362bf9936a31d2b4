"""Several ranks on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import opguard, opguard_json

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


def test_four_ranks(tmp_path: Path) -> None:
    """``--ranks`` overrules the recipe; what is compared says in which rank it began, and which only received it."""
    for name, words in (("reference", ()), ("candidate", ("--", "eps=2"))):
        ran = opguard("run", "programs.py:ddp", "-o", tmp_path / name, "--ranks", "4", *words, cwd=HERE)
        assert ran.returncode == 0, ran.stderr
    done, document = opguard_json("compare", str(tmp_path / "reference"), str(tmp_path / "candidate"), cwd=HERE)
    first = document["first_divergence"]
    assert (done, first["rank"], first["received_by"]) == (1, 2, [0, 1, 3])
    assert first["detail"] == "eps 1e-05 -> 0.001"
    assert "Rank 3 only received it, through c10d.allreduce_.default in step 0." in document["notes"]


@pytest.mark.parametrize("count", ["0", "65", "two"])
def test_numbers_of_ranks(count: str) -> None:
    """A number that cannot be is a usage error."""
    assert opguard_json("run", "programs.py:ddp", "-o", "unused", "--ranks", count, cwd=HERE)[0] == 2
