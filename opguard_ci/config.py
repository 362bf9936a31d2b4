"""``[tool.opguard]`` of the working tree's pyproject.toml (DESIGN 8): read, checked, with defaults."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from .errors import UsageError
from .recipe import LEVELS, PROFILES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MISSING: Final = ("fail", "reference", "skip")


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a project.

    Attributes:
        recipes: targets, or globs of files whose ``@recipe`` functions are the targets.
        reference_branch: where a merge base is looked for if no golden is usable.
        profile: for every target that declares none; None leaves it to the kind of target.
        level: how much is recorded.
        golden: folder of the goldens, below the root.
        objects: folder of golden events too large to commit; None is the cache.
        paths: tracked paths that matter to the recipes; empty means all.
        pin: files of the working tree laid over every commit.
        link: untracked inputs that every commit's tree gets as links.
        build: command that makes what a clean tree lacks; run in the tree.
        env: variables that every run gets.
        timeout: seconds for one run.
        missing: what happens when there is no golden; None is the default of DESIGN 8.

    """

    recipes: tuple[str, ...] = ()
    reference_branch: str = "main"
    profile: str | None = None
    level: str = "auto"
    golden: str = "golden"
    objects: str | None = None
    paths: tuple[str, ...] = ()
    pin: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    build: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0
    missing: str | None = None


_LISTS: Final = frozenset(("recipes", "paths", "pin", "link"))
_CHOICES: Final = {"profile": PROFILES, "level": LEVELS, "missing": MISSING}


def load_config(root: str | os.PathLike[str]) -> Config:
    """The settings in ``pyproject.toml`` of a folder; defaults if it has none. Raises ``UsageError`` ``bad-config``."""
    file = Path(root) / "pyproject.toml"
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Config()
    except (OSError, ValueError) as error:
        raise UsageError("bad-config", f"{file} cannot be read: {error}.") from error
    table = document.get("tool", {}).get("opguard", {})
    if not isinstance(table, dict):
        raise UsageError("bad-config", f"[tool.opguard] in {file} is no table.")
    return parse_config(table, str(file))


def parse_config(table: Mapping[str, Any], where: str) -> Config:
    """The settings of a table. Raises ``UsageError`` ``bad-config`` for what is unknown or of a wrong kind."""
    known = {item.name for item in fields(Config)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}."
            raise UsageError("bad-config", f"{where} has an unknown key {key!r} in [tool.opguard]{hint}")
        values[key] = _checked(key, value, where)
    return Config(**values)


def _checked(key: str, value: Any, where: str) -> Any:
    def refuse(wanted: str) -> UsageError:
        return UsageError("bad-config", f"{where}: {key} in [tool.opguard] must be {wanted}, not {value!r}.")

    if key in _LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise refuse("a list of strings")
        return tuple(value)
    if key == "env":
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise refuse("a table of strings")
        return dict(value)
    if key == "timeout":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise refuse("a number of seconds above 0")
        return float(value)
    if not isinstance(value, str):
        raise refuse("a string")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise refuse(f"one of {', '.join(_CHOICES[key])}")
    return value
