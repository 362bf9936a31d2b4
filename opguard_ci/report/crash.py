"""The file that a person attaches to a report about a defect of opguard_ci."""

from __future__ import annotations

import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from opguard_ci.worker.cache import cache_folder

_PACKAGES: Final = ("opguard-ci", "torch", "numpy", "pyarrow", "xxhash", "gitpython", "rich", "pytest")


def write_crash_file(error: Exception, words: Sequence[str]) -> str:
    """Write traceback and versions to a new file of the cache folder; return the sentence that names it."""
    text = "\n".join(
        [
            f"command: opguard {shlex.join(words)}",
            f"python: {sys.version} on {platform.platform()}",
            *(f"{name}: {installed_version(name)}" for name in _PACKAGES),
            "",
            *traceback.format_exception(error),
        ]
    )
    try:
        folder = cache_folder() / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir())
    with tempfile.NamedTemporaryFile(
        "w", prefix="crash-", suffix=".txt", dir=folder, delete=False, encoding="utf-8", errors="replace"
    ) as file:
        file.write(text)
    return f"opguard_ci itself failed ({type(error).__name__}: {error}); please report it and attach {file.name}"


def installed_version(name: str) -> str:
    """The version of a distribution, or "not installed"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
