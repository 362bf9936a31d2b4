"""The workloads are the ones that figures were measured on before."""

from __future__ import annotations

import hashlib
from pathlib import Path

DATA = Path(__file__).parent / "data"


def test_workloads_are_unchanged():
    """The file has the digest that is listed for it."""
    digest, name = (DATA / "SHA256SUMS").read_text().split()
    assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest
