"""What a trace holds of some values beside their fingerprints: their numbers, so that a tolerance can judge them.

``values-<rank>.arrows``, a row per value, each once. Pure but for ``read_known``'s checks of what Arrow hands over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from opguard_ci.trace.formats import COMPLEX, FLOATS
from opguard_ci.trace.model import NO_VALUE

MAX_NUMBERS: Final = 1 << 26
"""Most bytes of numbers that a trace holds."""
KNOWN_SCHEMA: Final = pa.schema([("value", pa.uint64()), ("spec", pa.string()), ("numbers", pa.large_binary())])

Value = tuple[int, str]
"""A fingerprint and its spec."""
_SPEC: Final = re.compile(r"(\w+)(?:\[[\d,]*\])?(?: \w+)*")
_PYTHON: Final = {"float": "float64", "complex": "complex128"}


def number_format(spec: str) -> str | None:
    """The real dtype of the numbers of a value with this spec; None if it has no floating-point ones."""
    found = _SPEC.fullmatch(spec)
    dtype = _PYTHON.get(found[1], found[1]) if found else ""
    dtype = COMPLEX.get(dtype, dtype)
    return dtype if dtype in FLOATS else None


def known_batch(rows: Sequence[tuple[Value, bytes]]) -> pa.RecordBatch:
    """Rows as Arrow keeps them."""
    columns = [
        pa.array([value for (value, _), _ in rows], pa.uint64()),
        pa.array([spec for (_, spec), _ in rows], pa.string()),
        pa.array([numbers for _, numbers in rows], pa.large_binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KNOWN_SCHEMA)


def known_rows(batches: Iterator[pa.RecordBatch]) -> dict[Value, bytes]:
    """All rows of a file. ``ValueError`` for what opguard_ci does not write."""
    found: dict[Value, bytes] = {}
    left = MAX_NUMBERS
    for batch in batches:
        if not batch.schema.equals(KNOWN_SCHEMA):
            raise ValueError("its columns are not value, spec and numbers")
        batch.validate(full=True)
        left -= batch.column(2).nbytes
        if left < 0:
            raise ValueError(f"it holds more than {MAX_NUMBERS} bytes of numbers")
        for value, spec, numbers in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if value in (None, NO_VALUE) or spec is None or numbers is None:
                raise ValueError("a row is not whole")
            found[value, spec] = numbers
    return found
