"""Which rows of a batch are others: replaced ones, or the same ones in another order. Pure numpy."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, Final

import numpy as np

from ..trace.formats import Array

_MAX_ROWS: Final = 1 << 16
_MAX_LISTED: Final = 8


def changed_rows(reference: Array, candidate: Array, num_rows: int) -> dict[str, Any] | None:
    """What happened to the rows of a tensor, given as two flat arrays of the same kind.

    ``of`` rows, ``differ`` of which are others, the ``first`` of them by number; ``moved``: so many of these are rows
    that the reference has in other places, ``from`` where (the first as [candidate's row, reference's row]);
    ``reordered``: all are, so that only the order differs. None for tensors that have no rows, or too many.
    """
    if not 2 <= num_rows <= _MAX_ROWS or not reference.size or reference.size % num_rows:
        return None
    left, right = (np.ascontiguousarray(side).reshape(num_rows, -1) for side in (reference, candidate))
    where = np.flatnonzero((left != right).any(1)).tolist()
    places: dict[bytes, deque[int]] = defaultdict(deque)
    for row in where:
        places[left[row].tobytes()].append(row)
    origins = []
    for row in where:
        found = places.get(right[row].tobytes())
        if found:
            origins.append([row, found.popleft()])
    return {
        "of": num_rows,
        "differ": len(where),
        "first": where[:_MAX_LISTED],
        "moved": len(origins),
        "from": origins[:_MAX_LISTED],
        "reordered": bool(where) and len(origins) == len(where),
    }


def rows_in_words(rows: dict[str, Any]) -> str:
    """The same in one phrase."""
    if rows["reordered"]:
        moves = ", ".join(f"row {now} was row {before}" for now, before in rows["from"][:3])
        more = ", …" if rows["differ"] > 3 else ""
        return f"the same {rows['of']} rows in another order ({moves}{more})"
    if rows["differ"] == rows["of"]:
        text = f"all {rows['of']} rows are others"
    elif rows["differ"] == 1:
        text = f"row {rows['first'][0]} of {rows['of']} is another"
    else:
        shown = ", ".join(map(str, rows["first"][:6]))
        more = ", …" if rows["differ"] > 6 else ""
        text = f"{rows['differ']} of {rows['of']} rows are others ({shown}{more})"
    return f"{text}; {rows['moved']} of these the reference has in other places" if rows["moved"] else text
