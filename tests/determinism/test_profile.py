from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.determinism import profile
from opguard_ci.errors import UsageError

PORTABLE = """
import json, warnings
warnings.simplefilter("error")
import numpy as np
from opguard_ci.determinism import environment, profile
problems = profile.apply("portable", 3)
environment.environment_document()
import torch
x = torch.rand(5000)
expected = torch.from_numpy(np.sqrt(x.numpy()))  # numpy's is correctly rounded
p = x[:4].clone().requires_grad_()
torch.sqrt(p).sum().backward()
out = torch.empty(0)
checks = {
    "sqrt": torch.equal(torch.sqrt(x), expected),
    "strided": torch.equal(x[::2].sqrt(), expected[::2]),
    "in place": torch.equal(x.clone().sqrt_(), expected),
    "out": torch.equal(torch.sqrt(x, out=out), expected) and torch.equal(out, expected),
    "foreach": torch.equal(torch._foreach_sqrt([x])[0], expected),
    "gradient": torch.allclose(p.grad, 0.5 / p.detach().sqrt()),
    "negative zero": bool(torch.signbit(torch.sqrt(torch.tensor(-0.0)))),
    "negative": bool(torch.isnan(torch.sqrt(torch.tensor(-1.0)))),
    "integers": torch.sqrt(torch.tensor([4])).dtype is torch.float32,
    "float64": torch.sqrt(torch.tensor(2.0, dtype=torch.float64)).item() == 2 ** 0.5,
    "bfloat16": torch.sqrt(torch.tensor(2.0, dtype=torch.bfloat16)).dtype is torch.bfloat16,
    "complex": torch.allclose(torch.sqrt(torch.tensor(-1 + 0j)), torch.tensor(1j)),
    "empty": torch.sqrt(torch.empty(0, 3)).shape == (0, 3),
    "no cuda": not torch.cuda.is_initialized(),
}
draws = []
for _ in range(2):
    profile.seed_everything(5)
    draws.append([torch.rand(()).item(), float(np.random.rand())])
checks["seeds"] = draws[0] == draws[1]
print(json.dumps([problems, checks, profile.effective()]))
"""


@pytest.fixture(scope="module")
def portable() -> tuple[list[str], dict[str, bool], dict[str, str]]:
    environment = {
        **os.environ,
        **profile.environment_variables("portable"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    answer = subprocess.run(
        [sys.executable, "-c", PORTABLE], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    values: Any = json.loads(answer.stdout)
    return values[0], values[1], values[2]


def test_the_portable_square_root_is_correctly_rounded(portable: Any) -> None:
    """Every form of sqrt gives the correctly rounded result and keeps dtype, gradient, zeros and NaN."""
    assert {name for name, passed in portable[1].items() if not passed} == set()


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="needs AVX2")
def test_portable_is_in_force(portable: Any) -> None:
    """With its variables set before the start, portable has no problem to report and torch uses AVX2."""
    problems, _, effective = portable
    assert problems == []
    assert effective["cpu.capability"] == "AVX2"
    assert effective["flag.portable_sqrt"] == "True"
    assert effective["hash_seed"] == "0"


def test_observe_sets_nothing() -> None:
    """Observe has no variables, no settings and no problems."""
    before = dict(os.environ)
    assert profile.environment_variables("observe") == {}
    assert profile.apply("observe", 1) == []
    assert dict(os.environ) == before


def test_portable_adds_the_cpu_pins_to_strict() -> None:
    """Portable is strict plus the pins that make CPUs agree."""
    strict, portable = profile.environment_variables("strict"), profile.environment_variables("portable")
    assert {name: portable[name] for name in portable.keys() - strict.keys()} == {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "COMPATIBLE",
    }
    assert strict.items() <= portable.items()


def test_an_unknown_profile_is_refused() -> None:
    """The error lists the profiles."""
    with pytest.raises(UsageError, match="strict, portable, observe"):
        profile.environment_variables("fast")


def test_replaced_variables_are_said() -> None:
    """Only a variable of the caller that gets another value is worth a sentence."""
    environment = {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "1", "PATH": "/bin"}
    assert profile.overridden("strict", environment) == [
        "OMP_NUM_THREADS=8 of the environment is 1 under the profile strict"
    ]
    assert profile.overridden("observe", environment) == []
