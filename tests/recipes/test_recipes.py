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
        begun = time.perf_counter()
        steps = [
            [float(held["loss"]), *(p.double().sum().item() for p in held["model"].parameters())]
            for held in itertools.islice(function(), options.steps)
        ]
        seconds = time.perf_counter() - begun
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
