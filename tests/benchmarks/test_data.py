"""The workloads are the ones that figures were measured on before."""

from __future__ import annotations

import hashlib
from pathlib import Path

DATA = Path(__file__).parent / "data"


def test_workloads_are_unchanged():
    """Every file has the digest that is listed for it, and none is missing."""
    listed = dict(reversed(line.split(maxsplit=1)) for line in (DATA / "SHA256SUMS").read_text().splitlines())
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in DATA.glob("*.py")} == listed
