"""Every verb takes recipes of several ranks: all of them look at one small history, and share its runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import environment, opguard_json
from tests.gitrepo import GitRepo

pytestmark = pytest.mark.usefixtures("shared_servers")

RECIPE = """\
import torch
import torch.distributed as dist
from torch import nn
from net import eps_of
from opguard_ci import recipe


@recipe(steps=2, ranks=2)
def train():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=eps_of(dist.get_rank())), nn.Linear(8, 2))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield {"loss": loss, "model": model}
"""
NET = "def eps_of(rank):\n    return {}\n"


class History(GitRepo):
    """A change in rank 1 alone, in the second commit."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.git("config", "user.name", "Ada")
        self.git("config", "user.email", "ada@example.invalid")
        self.put("pyproject.toml", "[tool.opguard]\n")
        self.good = self.commit("the first", recipe=RECIPE, net=NET.format("1e-5"))
        self.bad = self.commit("an eps", net=NET.format("1e-3 if rank == 1 else 1e-5"))

    def opguard(self, *words: str) -> tuple[int, dict[str, Any]]:
        return opguard_json(*words, "recipe.py:train", cwd=self.dir)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(tmp_path_factory.mktemp("history"))


def _is_the_change(found: dict[str, Any]) -> bool:
    """Whether a divergence is the history's, measured in the rank where it is."""
    said = {key: found[key] for key in ("cause", "op", "rank", "ranks", "received_by")}
    return said == {
        "cause": "arguments",
        "op": "aten.native_layer_norm.default",
        "rank": 1,
        "ranks": [1],
        "received_by": [0],
    } and any(tensor["different"] for tensor in found["tensors"])


def test_check(history: History) -> None:
    """Against a commit: the rank, the operator, and how much differs there."""
    code, document = history.opguard("check", "--reference", history.good)
    assert (code, document["verdict"]) == (1, "diverged"), document
    assert _is_the_change(document["results"][0]["first_divergence"])


def test_bisect_and_history(history: History) -> None:
    """The commit is found, and the classes of both are known from then on."""
    code, document = history.opguard("bisect", "--good", history.good, "--bad", history.bad)
    assert (code, document["first_bad"]) == (0, history.bad), document
    assert _is_the_change(document["divergence"])
    code, document = history.opguard("history", f"{history.good}..{history.bad}")
    assert (code, [each["class"] for each in document["commits"]]) == (0, ["A", "B"]), document


def test_goldens_and_replay(history: History) -> None:
    """What repeats itself can be blessed, and is compared with later."""
    code, document = history.opguard("replay")
    assert (code, document["verdict"]) == (0, "identical"), document
    assert history.opguard("bless", "--reason", "as it is")[0] == 0
    code, document = history.opguard("check")
    assert (code, document["results"][0]["reference"]["kind"]) == (0, "golden"), document


def test_pytest(history: History) -> None:
    """A collected recipe runs in its ranks, too."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--opguard-reference={history.good}"]
    done = subprocess.run(
        [*words, "recipe.py"], cwd=history.dir, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 1" in done.stdout
    assert "Rank 0 only received it" in done.stdout
