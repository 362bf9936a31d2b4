"""The manifest of a trace: its keys, and the check of one that a stranger wrote. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

from opguard_ci.errors import IncomparableError
from opguard_ci.tolerance import parse_tolerances
from opguard_ci.trace.model import SCHEMA

MAX_RANKS: Final = 1 << 16

_TEXT_OR_NULL: Final = (str, type(None))
# Type of every key that schema 1 knows; a golden manifest has more, which pass as they are.
_KEYS: Final[dict[str, type | tuple[type, ...]]] = {
    "target": str,
    "argv": list,
    "cwd": str,
    "commit": _TEXT_OR_NULL,
    "tree": _TEXT_OR_NULL,
    "edits": _TEXT_OR_NULL,
    "environment": dict,
    "profile": str,
    "level": str,
    "scheme": str,
    "ranks": int,
    "coverage": dict,
    "steps": list,
    "objects": dict,
    "complete": bool,
    "outcome": (dict, type(None)),
    "findings": list,
    "notes": list,
    "last_operator": _TEXT_OR_NULL,
    "tolerance": dict,
    "unstable": dict,
    "window": (dict, type(None)),
    "asked_steps": (int, type(None)),
}
_REQUIRED: Final = ("target", "environment", "scheme", "ranks", "steps", "complete")
_DEFAULTS: Final[dict[str, Any]] = {
    "argv": [],
    "cwd": "",
    "commit": None,
    "tree": None,
    "edits": None,
    "profile": "",
    "level": "",
    "coverage": {},
    "objects": {},
    "outcome": None,
    "findings": [],
    "notes": [],
    "last_operator": None,
    "tolerance": {},
    "unstable": {},
    "window": None,
    "asked_steps": None,
}
_COVERAGE: Final[dict[str, type]] = {"operators": int, "hashed": int, "unhashed": list, "unseen": list}
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_OBJECT: Final = re.compile(r"(?:events|values)-(0|[1-9][0-9]{0,5})\.arrows")
_SCHEME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,63}")


class NotAManifest(ValueError):
    """JSON, or not even that, but no manifest of a trace."""


def parse(data: bytes) -> dict[str, Any]:
    """A manifest, every key present and of its type.

    Raises:
        NotAManifest: it is something else.
        ValueError: it is a manifest with a broken value; the message names the key.
        IncomparableError: another version of opguard_ci wrote it.

    """
    try:
        manifest = json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise NotAManifest("its JSON is nested too deeply") from None
    except ValueError as error:
        raise NotAManifest(f"it is not JSON ({error})") from None
    if not isinstance(manifest, dict) or "schema" not in manifest:
        raise NotAManifest("it has no key schema")
    if not _is(manifest["schema"], int):
        _broken("schema", "is not a whole number")
    if manifest["schema"] != SCHEMA:
        raise IncomparableError(
            "other-schema",
            f"schema: the trace has {manifest['schema']}, this opguard_ci reads {SCHEMA}; record it again.",
        )
    for key in _REQUIRED:
        if key not in manifest:
            _broken(key, "is missing")
    for key, default in _DEFAULTS.items():
        manifest.setdefault(key, default.copy() if isinstance(default, (list, dict)) else default)
    for key, kinds in _KEYS.items():
        if not _is(manifest[key], kinds):
            _broken(key, "has another type than it should")
    _check_values(manifest)
    return manifest


def _check_values(manifest: dict[str, Any]) -> None:
    if not _SCHEME.fullmatch(manifest["scheme"]):
        _broken("scheme", "is not an id")
    if not 1 <= manifest["ranks"] <= MAX_RANKS:
        _broken("ranks", "is out of range")
    for key in ("argv", "notes"):
        if not all(isinstance(text, str) for text in manifest[key]):
            _broken(key, "holds something else than text")
    if not all(isinstance(finding, dict) for finding in manifest["findings"]):
        _broken("findings", "holds something else than objects")
    try:
        parse_tolerances(manifest["tolerance"])
    except ValueError as error:
        _broken("tolerance", str(error))
    if not all(isinstance(reason, str) for reason in manifest["unstable"].values()):
        _broken("unstable", "holds something else than text")
    window = manifest["window"]
    if window is not None and not all(type(window.get(end)) in (int, type(None)) for end in ("from", "to")):
        _broken("window", "has an end that is no whole number")
    environment = manifest["environment"]
    if not isinstance(environment.get("key"), str) or not isinstance(environment.setdefault("document", {}), dict):
        _broken("environment", "has no key or document")
    for key, kind in _COVERAGE.items():
        if not _is(manifest["coverage"].setdefault(key, kind()), kind):
            _broken(f"coverage.{key}", "has another type than it should")
    for entry in manifest["steps"]:
        _check_step(entry)
        if "ranks" in entry:
            _check_ranks(entry, manifest["ranks"])
    for name, entry in manifest["objects"].items():
        if not _OBJECT.fullmatch(name) or not isinstance(entry, dict):
            _broken("objects", "names something else than events-<rank>.arrows and values-<rank>.arrows")
        if not isinstance(entry.get("sha256"), str) or not _SHA256.fullmatch(entry["sha256"]):
            _broken("objects", "has an entry without sha256")
        if not _is(entry.get("bytes"), int) or entry["bytes"] < 0:
            _broken("objects", "has an entry without size in bytes")


def _check_step(entry: object) -> None:
    if not isinstance(entry, dict) or not _is(entry.get("step"), int) or not _is(entry.get("events"), int):
        _broken("steps", "has an entry without step and events")
    _check_account(entry)


def _check_ranks(entry: dict[str, Any], ranks: int) -> None:
    """What each rank says of a step: null if it has none."""
    if not isinstance(entry["ranks"], list) or len(entry["ranks"]) != ranks:
        _broken("steps", "has an entry that does not say what each rank did")
    for mine in entry["ranks"]:
        if mine is not None:
            if not isinstance(mine, dict) or not _is(mine.get("events"), int):
                _broken("steps", "has a rank without events")
            _check_account(mine)


def _check_account(entry: dict[str, Any]) -> None:
    flagged = entry.get("flagged", [])
    if not isinstance(flagged, list) or not all(_is(number, int) for number in flagged):
        _broken("steps", "has flagged events that are no numbers")
    digests = entry.setdefault("digests", {})
    if not isinstance(digests, dict):
        _broken("steps", "has digests that are no object")
    for name, digest in digests.items():
        if name == "operators":
            good = isinstance(digest, dict) and all(map(_is_digest, digest.values()))
        else:
            good = _is_digest(digest)
        if not good:
            _broken("steps", "has a digest that is not 32 hex digits")


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is(value: object, kinds: type | tuple[type, ...]) -> bool:
    """``isinstance``, but True is not a number."""
    return isinstance(value, kinds) and (kinds is not int or not isinstance(value, bool))


def _broken(key: str, what: str) -> NoReturn:
    raise ValueError(f"{key} {what}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
