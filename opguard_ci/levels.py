"""What each level of capture cannot find (docs/levels.md). Pure."""

from __future__ import annotations

from typing import Final

BLIND_SPOTS: Final = {
    "op": "Level op does not look at inputs but takes them for what was last written there: memory that was changed by "
    "no recorded operator is found late or not at all, and what is put down to a kernel may be such a change. --level "
    "full tells.",
    "contract": "Level contract looks at the values of step ends alone: it cannot say which operator made a "
    "difference, nor find one that did not get that far.",
}
"""By level, in a sentence; a level that finds everything that capture can find has none."""
