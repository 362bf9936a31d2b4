"""The case programs are the ones that were handed over."""

from __future__ import annotations

import hashlib

from tests.cases.expectations import DATA


def test_programs_are_unchanged():
    """Every file of the data folder is in SHA256SUMS, with its digest, and no file is missing."""
    listed = dict(reversed(line.split(maxsplit=1)) for line in (DATA / "SHA256SUMS").read_text().splitlines())
    present = {
        path.relative_to(DATA).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in DATA.rglob("*.py")
    }
    assert present == listed
    assert len(present) == 45
