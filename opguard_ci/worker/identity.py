"""Which fork server fits a caller: a digest of all that a preloaded interpreter has taken from its surroundings."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opguard_ci.determinism.profile import environment_variables
from opguard_ci.errors import UsageError

DEFAULT_ENTRY: Final = "opguard_ci.capture.run:execute"

PACKAGE: Final = Path(__file__).resolve().parent.parent

_IRRELEVANT: Final = frozenset(
    {
        "CI", "COLORTERM", "COLUMNS", "FORCE_COLOR", "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "NO_COLOR", "OLDPWD",
        "OPGUARD_CACHE", "OPGUARD_SERVER_IDLE", "PWD", "SHLVL", "TERM", "TERM_PROGRAM", "TERM_SESSION_ID", "TMUX",
        "TMUX_PANE", "WINDOWID", "XDG_SESSION_ID", "_",
    }
)  # fmt: skip
_IRRELEVANT_PREFIXES: Final = ("GITHUB_", "PYTEST_", "RUNNER_", "SSH_", "VSCODE_")
"""Variables that no import of torch reads. The run gets them all the same: its environment is the caller's."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Which server is asked for.

    ``instance`` 1 is another process than 0, with another hash seed where the profile leaves it open. ``hash_seed``
    None means the profile's, else the caller's own, else a random one per server. ``entry`` (``module:function``) is
    called in the child with the request and returns the outcome.
    """

    profile: str
    instance: int = 0
    hash_seed: int | None = None
    entry: str = DEFAULT_ENTRY


def chosen_hash_seed(spec: ServerSpec, environment: Mapping[str, str]) -> str:
    """The PYTHONHASHSEED to start a server with. A seed that the profile or the caller pins is never replaced.

    Raises UsageError if the profile pins another seed than the one asked for.
    """
    pinned = environment_variables(spec.profile).get("PYTHONHASHSEED")
    if pinned is not None:
        if spec.hash_seed not in (None, int(pinned)):
            message = f"Hash seed {spec.hash_seed} cannot be had: the profile {spec.profile} pins it to {pinned}."
            raise UsageError("hash-seed-pinned", message)
        return pinned
    own = environment.get("PYTHONHASHSEED", "")
    if own.isdigit():
        return own
    if spec.hash_seed is not None:
        return str(spec.hash_seed)
    return str(secrets.randbelow(2**32 - 1) + 1)


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a preloaded interpreter may have read."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name not in _IRRELEVANT and not name.startswith(_IRRELEVANT_PREFIXES)
    }


def server_key(spec: ServerSpec, environment: Mapping[str, str]) -> str:
    """20 hex digits: equal for callers that one server can serve.

    Covers the interpreter and its options, the profile, the environment, the CPUs that may be used, what is installed
    and the source of opguard_ci, so that an edited checkout or an upgraded package is not served by old code.
    """
    parts = {
        "python": [sys.executable, sys.version, sys.prefix],
        "options": interpreter_options(),
        "spec": [spec.profile, spec.instance, spec.hash_seed, spec.entry],
        "environment": {**relevant(environment), **environment_variables(spec.profile)},
        "cpus": sorted(os.sched_getaffinity(0)),
        "sites": _site_stamps(),
        "source": _source_stamps(),
        "cwd": str(Path.cwd()) if _has_relative_path(environment) else "",
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def code_stamp() -> str:
    """Changes with the source of opguard_ci: what other code recorded is not taken for what this code would record."""
    return hashlib.sha256(json.dumps(_source_stamps()).encode()).hexdigest()[:20]


def interpreter_options() -> list[str]:
    """The options (``-O``, ``-X dev``, ``-W …``) that this interpreter was started with."""
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


def _has_relative_path(environment: Mapping[str, str]) -> bool:
    return any(not Path(entry).is_absolute() for entry in environment.get("PYTHONPATH", "/").split(os.pathsep))


def _site_stamps() -> list[tuple[str, int]]:
    # An installer adds or removes an entry of these folders, which changes their time.
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return [(folder, Path(folder).stat().st_mtime_ns) for folder in sorted(folders) if Path(folder).exists()]


def _source_stamps() -> list[tuple[str, int, int]]:
    stamps = []
    for file in sorted(PACKAGE.rglob("*.py")):
        status = file.stat()
        stamps.append((str(file), status.st_mtime_ns, status.st_size))
    return stamps
