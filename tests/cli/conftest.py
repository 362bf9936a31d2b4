"""Small targets for tests of the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command import opguard_json
from tests.conftest import SERVERS_IDLE

TRAINING = """\
import sys
import torch
from torch import nn


def train(eps=1e-5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=eps), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        print("step", step, flush=True)
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield {"loss": loss, "model": model, "optimizer": optimizer}


def edited():
    yield from train(eps=1e-3)


def raises():
    for number, step in enumerate(train()):
        yield step
        if number == 1:
            raise ValueError("bad batch")


def nothing():
    return
    yield


def unseeded():
    for _ in range(2):
        yield {"loss": torch.rand(3) + 1}


def hashes():
    order = sorted("abcdefgh", key=hash)
    for _ in range(2):
        yield {"loss": torch.tensor([float(ord(name)) for name in order]) * 2}


def endless():
    import time

    yield from train()
    time.sleep(600)


def crashes():
    import os
    import signal

    yield from train()
    os.kill(os.getpid(), signal.SIGSEGV)


def exits():
    yield from train()
    sys.exit(3)


needs_more = train
not_callable = 3


if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    for _ in train(eps=float(sys.argv[1]) if sys.argv[1:] else 1e-5):
        pass
"""


@pytest.fixture
def project(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``training.py`` in it."""
    monkeypatch.setenv("OPGUARD_CACHE", str(cache))
    monkeypatch.setenv("OPGUARD_SERVER_IDLE", SERVERS_IDLE)
    (tmp_path / "training.py").write_text(TRAINING)
    return tmp_path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder with ``training.py`` and the traces ``good``, ``again`` and ``edited`` (another eps)."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "training.py").write_text(TRAINING)
    for name, function in (("good", "train"), ("again", "train"), ("edited", "edited")):
        words = ["run", f"training.py:{function}", "-o", name]
        code, document = opguard_json(*words, cwd=folder, OPGUARD_CACHE=str(cache), OPGUARD_SERVER_IDLE=SERVERS_IDLE)
        assert code == 0, document
    return folder


@pytest.fixture
def traces(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the recorded traces, to be damaged at will."""
    return shutil.copytree(recorded, tmp_path / "traces")
