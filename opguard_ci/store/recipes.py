"""Names recipes: the id under which goldens, declared changes and reports know a target. Pure but for paths."""

from __future__ import annotations

import hashlib
import os
import re


def relative_target(target: str, cwd: str, root: str) -> str:
    """The target as it is called from the root: file targets by their path below it, module targets as they are."""
    path, colon, function = target.rpartition(":")
    if not colon:
        path, function = target, ""
    if not path.endswith(".py"):
        return target
    place = os.path.relpath(os.path.join(os.path.realpath(cwd), path), os.path.realpath(root))  # noqa: PTH118
    return f"{place}{colon}{function}"


def recipe_id(target: str, cwd: str, root: str) -> str:
    """``recipe.py_train-1a2b3c4d``: the target relative to the root in safe characters, and 8 hex digits."""
    text = relative_target(target, cwd, root)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9._-]', '_', text)}-{digest}"
