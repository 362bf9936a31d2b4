"""Both recorders make the same events of tensors on a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from opguard_ci.capture import native
from tests.capture.native.test_same import same
from tests.capture.running import Runner

from .test_capture import HEAD, PROGRAMS

DRAWS = """
def main():
    torch.manual_seed(0)
    torch.cuda.manual_seed(1)
    x = torch.ones(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16)
    for n in range(4):
        y = F.scaled_dot_product_attention(x, x, x, dropout_p=0.0 if n < 2 else 0.1)
        x = F.dropout(y, 0.2) + torch.rand_like(y) + torch.randn(2, 4, 64, 32, device="cuda") + torch.rand(32).cuda()
        x = x.bfloat16() * torch.bernoulli(torch.full((32,), 0.5, device="cuda"))
        print(x.sum().item())
"""


@pytest.fixture(scope="module")
def runners() -> tuple[Runner, Runner]:
    if native.load()[0] is None:
        pytest.skip(native.load()[1])
    folder = {"OPGUARD_CACHE": str(native.library().parents[2])}
    return Runner("strict", **folder), Runner("strict", **folder, OPGUARD_NATIVE="0")


@pytest.mark.parametrize("level", ["full", "op", "contract"])
@pytest.mark.parametrize("name", ["eager", "convolutions", "streams", "draws"])
def test_same_events(runners, tmp_path: Path, name: str, level: str):
    """Forward, backward, optimizers, other streams, generators, views in every order."""
    program = tmp_path / "program.py"
    program.write_text(HEAD + (PROGRAMS | {"draws": DRAWS})[name])
    cwd = str(Path(__file__).parents[2])
    ran = same(runners, f"{program}:main", tmp_path, level=level, cwd=cwd)
    assert ran.ok, ran.answer
    assert ran.manifest["recorder"] == {"kind": "compiled"}
