"""Carries the importer into processes that the run starts by ``multiprocessing`` with spawn or forkserver.

A forked child has the finder already. A spawned one starts a new interpreter and imports the main file before any
code of the run; the start-up data that it unpickles first is where the finder gets in. Python processes that are
started by a command line have to call `install_from_env` themselves; the environment tells them what.
"""

from __future__ import annotations

import os
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from opguard_ci.worker.importer import TreeFinder, install
from opguard_ci.worker.plan import ImportPlan
from opguard_ci.worker.watch import watch

VARIABLE = "OPGUARD_IMPORT_PLAN"


class _Carrier:
    """Unpickles by installing the importer."""

    def __reduce__(self) -> tuple[Any, ...]:
        return install_from_env, ()


def carry(plan: ImportPlan, file: Path) -> None:
    """Save the plan to ``file`` and have children of this process install it."""
    plan.save(file)
    os.environ[VARIABLE] = str(file)
    if getattr(spawn.get_preparation_data, "carries_plan", False):
        return
    prepare = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        # First in the dictionary, so that it is unpickled before anything that would import the project.
        return {"opguard_import_plan": _Carrier(), **prepare(name)}

    get_preparation_data.carries_plan = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data


def install_from_env() -> TreeFinder | None:
    """Install the importer and the watch that the environment names; None when it names none."""
    file = os.environ.get(VARIABLE)
    if not file:
        return None
    plan = ImportPlan.load(Path(file))
    watch(plan)
    return install(plan)
