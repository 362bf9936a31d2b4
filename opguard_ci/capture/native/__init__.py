"""The compiled recorder: makes the events of ordinary calls, as the Python recorder would, at a fraction of the time.

It is optional. ``python -m opguard_ci.capture.native`` compiles it; a run uses it if it is there, and never compiles.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader
from typing import Any

from .build import MODULE, failure, library

_loaded: Any = None
_switched_off = ""


def load() -> tuple[Any, str]:
    """The module, or None and the reason why runs of this process do without it."""
    global _loaded
    if _switched_off or os.environ.get("OPGUARD_NATIVE") == "0":
        return None, _switched_off or "OPGUARD_NATIVE=0 switches it off"
    if _loaded is not None:
        return _loaded, ""
    if sys.version_info < (3, 11) or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None, "it needs Python 3.11 or newer, with its global lock"
    path = library()
    if not path.exists():
        reason = failure()
        return None, f"it could not be built: {reason}" if reason else "it is not built for this torch and Python"
    try:
        loader = ExtensionFileLoader(MODULE, str(path))
        spec = importlib.util.spec_from_loader(MODULE, loader)
        assert spec is not None
        _loaded = importlib.util.module_from_spec(spec)
        loader.exec_module(_loaded)
    except ImportError as error:
        _loaded = None
        return None, f"it cannot be loaded: {str(error).splitlines()[0]}"
    return _loaded, ""


def switch_off(reason: str) -> None:
    """Let runs of this process do without the module."""
    global _switched_off
    _switched_off = reason
