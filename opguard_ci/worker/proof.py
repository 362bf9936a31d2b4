"""Runs a commit's own code in this process and proves that it was the commit's code that ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opguard_ci.errors import UntestableError
from opguard_ci.worker.importer import TreeFinder, install, uninstall
from opguard_ci.worker.plan import ImportPlan
from opguard_ci.worker.request import RunRequest
from opguard_ci.worker.spawned import carry
from opguard_ci.worker.watch import Watch, watch

_MAX_NAMED = 5


class Proof:
    """What is known about the code of a run; of a run of the working tree, nothing has to be proven."""

    def __init__(self, finder: TreeFinder | None = None, seen: Watch | None = None) -> None:
        self._finder = finder
        self._seen = seen

    def read_script(self, file: Path) -> bytes:
        """The bytes of a script, proven to be the commit's where the script lies in its tree."""
        if self._finder is None or not file.is_relative_to(Path(self._finder.plan.tree).resolve()):
            return file.read_bytes()
        return self._finder.prove_file(str(file))

    def check(self) -> None:
        """Raise ``UntestableError`` ``proof-failed`` if a module of the project did not come from the commit's tree."""
        foreign = self._finder.foreign() if self._finder is not None else []
        if foreign:
            named = ", ".join(f"{module} ({origin})" for module, origin in foreign[:_MAX_NAMED])
            raise UntestableError("proof-failed", f"Code that is not the commit's was imported: {named}.")

    def notes(self) -> list[str]:
        """What the run read from the user's checkout."""
        if self._seen is None or not self._seen.reads:
            return []
        named = ", ".join(list(self._seen.reads)[:_MAX_NAMED])
        return [f"Files of the working tree were read, not the commit's own: {named}."]


@contextmanager
def code_of(request: RunRequest) -> Iterator[Proof]:
    """Import only the code of the request's import plan; without a plan, whatever Python finds."""
    if request.plan is None:
        yield Proof()
        return
    plan = ImportPlan.load(Path(request.plan))
    carry(plan, Path(request.plan))
    finder, seen = install(plan), watch(plan)
    try:
        yield Proof(finder, seen)
    finally:
        seen.stop()
        uninstall(finder)
