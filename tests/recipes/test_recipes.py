"""The recipes that ship with the package."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import opguard_ci.recipes
from opguard_ci.compare import compare_traces
from opguard_ci.trace.reader import read_trace
from opguard_ci.worker import client
from opguard_ci.worker.request import RunRequest
from opguard_ci.worker.servers import Server

ROOT = Path(__file__).parents[2]
NAMES = [module.name for module in pkgutil.iter_modules(opguard_ci.recipes.__path__)]

BARE = """
import importlib, itertools, json, sys, time
import torch, torch._dynamo
from opguard_ci.recipe import options_of

report = {}
for name in sys.argv[1:]:
    function = getattr(importlib.import_module("opguard_ci.recipes." + name), name)
    options, rounds = options_of(function), []
    for _ in range(2):
        torch.manual_seed(options.seed)
        begun = time.process_time()
        steps = [
            [float(held["loss"]), *(p.double().sum().item() for p in held["model"].parameters())]
            for held in itertools.islice(function(), options.steps)
        ]
        seconds = time.process_time() - begun
        rounds.append(steps)
    report[name] = {"steps": len(steps), "promised": options.steps, "seconds": seconds, "equal": rounds[0] == rounds[1]}
    report[name]["losses"] = [step[0] for step in steps]
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def bare() -> dict[str, dict[str, Any]]:
    """What each recipe does without capture, twice in one process."""
    done = subprocess.run([sys.executable, "-c", BARE, *NAMES], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_five_recipes_ship():
    """There is one module per recipe."""
    assert NAMES == ["conv_net", "encoder_bf16", "lstm", "mixture", "tiny_gpt"]


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_short_and_repeats_itself(name: str, bare: dict[str, dict[str, Any]]):
    """Four steps take under two seconds, train, and come out the same the second time."""
    report = bare[name]
    assert report["steps"] == report["promised"] == 4
    assert report["seconds"] < 2
    assert report["equal"]
    assert len(set(report["losses"])) == 4


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_captured_whole_and_repeats_itself_on_two_servers(name: str, tmp_path: Path):
    """Under capture nothing goes unseen or without fingerprint, and a run on another server computes the same bits.

    The one exception is the workspace that oneDNN's LSTM hands from forward to backward: it has bytes nobody wrote.
    """
    traces = []
    for instance in (0, 1):
        request = RunRequest(f"opguard_ci.recipes.{name}:{name}", cwd=str(ROOT), output=str(tmp_path / str(instance)))
        result = client.run(request, server=Server.connect("strict", instance=instance))
        assert result.status == "ok", result.outcome
        traces.append(read_trace(result.trace))
    manifest = traces[0].manifest
    assert manifest["complete"]
    assert manifest["profile"] == "strict"
    assert (manifest["coverage"]["unhashed"], manifest["coverage"]["unseen"]) == ([], [])
    assert [step["step"] for step in manifest["steps"]] == [0, 1, 2, 3]
    verdict = compare_traces(*traces).to_json()
    assert verdict["verdict"] in {"identical", "equivalent"}
    assert {entry["op"] for entry in verdict["transient"]} <= {"aten.mkldnn_rnn_layer.default"}
    assert verdict["structure"] == {"inserted": 0, "removed": 0, "moved": 0}
