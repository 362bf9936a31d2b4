"""The session's line before its tests: reference (cached or measured), environment key, profile."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from opguard_ci.errors import OpguardError
from pytest_opguard.guarding import Guard
from pytest_opguard.results import counted

if TYPE_CHECKING:
    from pytest_opguard.items import RecipeItem


def early_line(guard: Guard) -> str | None:
    """What is known before anything is collected; under xdist the controller never learns more."""
    settings = guard.settings
    if settings.reference is None:
        return None
    profile = settings.profile or "each recipe's own"
    return (
        f"opguard: reference {settings.reference}, profile {profile} (cached or measured, and environment: at the end)"
    )


def line(guard: Guard, recipes: list[RecipeItem]) -> str:
    """The line for the collected recipes. Starts the fork server that their runs need anyway."""
    try:
        return f"opguard: {_facts(guard, recipes)}"
    except OpguardError as error:  # each test will say so too
        return f"opguard: {error.message} [{error.slug}]"


def _facts(guard: Guard, recipes: list[RecipeItem]) -> str:
    jobs = [item.job() for item in recipes]
    project = recipes[0].project
    profiles = sorted({str(job.profile) for job in jobs})
    key = project.commits.environment_key(project.commits.server(jobs[0]))
    told = f"environment {key}, profile {', '.join(profiles)}"
    if guard.settings.bless is not None:
        return f"recording goldens in {project.goldens.folder}, {told}"
    if guard.settings.reference is None:
        return f"reference from {project.config.golden}, {told}"
    commit = project.repository.resolve(guard.settings.reference)
    kept = Counter("cached" if guard.is_kept(job, commit) else "measured" for job in jobs)
    return f"reference {commit[:12]}{counted(kept)}, {told}"
