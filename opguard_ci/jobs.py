"""Turns targets, and the globs of ``[tool.opguard] recipes``, into what is to be run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .capture.window import require_window
from .errors import UsageError
from .recipe import LEVELS, discover, parse_target
from .worker.places import Job

if TYPE_CHECKING:
    from .guard import Project


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asks of every run; None leaves it to the recipe, then to the project."""

    profile: str | None = None
    level: str | None = None
    timeout: float | None = None
    argv: tuple[str, ...] = ()
    ranks: int | None = None
    from_step: int | None = None
    to_step: int | None = None


def jobs_of(project: Project, targets: Sequence[str], cwd: str, asked: Asked) -> list[Job]:
    """The jobs for the given targets, or for the project's recipes if none is given; each once.

    Raises:
        UsageError: A target is malformed or its file does not exist, or there is none.

    """
    if targets:
        found = [Job(target, cwd) for target in targets]
    elif project.config.recipes:
        root = str(project.root)
        found = [Job(target, root) for entry in project.config.recipes for target in _expanded(project, entry)]
    else:
        raise UsageError(
            "no-targets",
            "No target was given and [tool.opguard] recipes is empty: name a target, or list your recipes.",
        )
    for job in found:
        parse_target(job.target, job.cwd)
    return [_settled(project, job, asked) for job in dict.fromkeys(found)]


def _settled(project: Project, job: Job, asked: Asked) -> Job:
    own = project.commits.places.declared(job).literals.get("level")
    level = asked.level or (own if own in LEVELS else project.config.level)
    require_window(asked.from_step, asked.to_step, str(level))
    return replace(
        job,
        profile=asked.profile,
        level=str(level),
        timeout=asked.timeout,
        argv=asked.argv,
        ranks=asked.ranks,
        from_step=asked.from_step,
        to_step=asked.to_step,
    )


def _expanded(project: Project, entry: str) -> list[str]:
    """The targets that an entry stands for: itself, or the ``@recipe`` functions of the files that a glob matches.

    Files are tracked, or at least not ignored, so that a virtual environment below the root is left alone.
    """
    if not any(letter in entry for letter in "*?["):
        return [entry]
    listed = project.repository.require(
        "ls-files", "-z", "--full-name", "--cached", "--others", "--exclude-standard", "--", f":(top,glob){entry}"
    )
    paths = sorted({os.fsdecode(path) for path in listed.split(b"\0") if path})
    targets = [
        f"{path}:{name}" for path in paths if path.endswith(".py") for name in discover(Path(project.root, path))
    ]
    if not targets:
        raise UsageError(
            "no-targets",
            f"No file that {entry!r} matches holds a @recipe function; correct recipes in [tool.opguard].",
        )
    return targets
