"""A small project under git with a recipe in it, for tests of what compares with commits and goldens."""

from __future__ import annotations

from pathlib import Path

from tests.gitrepo import GitRepo

RECIPE = """\
import torch
from torch import nn
from net import EPS, disturb
from opguard_ci import recipe


@recipe(steps=2{options})
def train():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=EPS), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss = model(torch.randn(4, 4)).square().mean() + disturb()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield {{"loss": loss, "model": model, "optimizer": optimizer}}
"""
NET = """\
import os
import time
import torch

EPS = {eps}


def disturb():
    {disturb}
    return torch.zeros(())
"""
UNSTABLE = "return torch.tensor(float(time.time_ns() % 1_000_003))"


class Guarded(GitRepo):
    """A repository whose first commit holds the recipe; targets are named from its root."""

    def __init__(self, folder: Path, *, file: str = "recipe.py", options: str = "", config: str = "") -> None:
        super().__init__(folder)
        self.target = f"{file}:train"
        self.put(file, RECIPE.format(options=options))
        self.put("pyproject.toml", f"[tool.opguard]\n{config}")
        self.net_place = f"{file.rpartition('/')[0]}/net.py".lstrip("/")
        self.net()
        self.git("config", "user.name", "Ada")
        self.git("config", "user.email", "ada@example.invalid")
        self.first = self.commit("the first")

    def net(self, *, eps: str = "1e-5", disturb: str = "pass", before: str = "") -> None:
        """Write the module that the recipe imports."""
        self.put(self.net_place, before + NET.format(eps=eps, disturb=disturb))

    def change(self, subject: str = "a change", **how: str) -> str:
        """Commit another version of that module."""
        self.net(**how)
        return self.commit(subject)
