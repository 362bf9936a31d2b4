"""Where opguard_ci keeps what it can make again: trees, fetched objects, verdicts, reference traces."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$OPGUARD_CACHE``, else ``$XDG_CACHE_HOME/opguard_ci``, else ``~/.cache/opguard_ci``; not made here."""
    given = os.environ.get("OPGUARD_CACHE")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says that a relative value is invalid and must be ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "opguard_ci"
    return Path.home() / ".cache" / "opguard_ci"
