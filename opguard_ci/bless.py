"""Makes goldens: runs targets twice, and keeps what both runs computed, with who, when and why."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .errors import UntestableError, UsageError
from .guard import Project, at_level_of_run, compare_runs
from .reference import code_digest, in_ci
from .store.golden import MAX_COMMITTED, Blessing, numerics_digest
from .store.recipes import recipe_id, relative_target
from .trace.reader import Trace, read_trace
from .worker.commits import Run
from .worker.places import Job


@dataclass(frozen=True, slots=True)
class BlessOptions:
    """``reason``: why these numbers are right. ``allow_nonfinite``: NaN and infinities may be among them."""

    reason: str
    allow_nonfinite: bool = False
    progress: Callable[[str], None] = lambda _: None


def bless(project: Project, jobs: Sequence[Job], options: BlessOptions) -> list[dict[str, Any]]:
    """Record the golden of each job in this environment; nothing is written unless all can be.

    Returns one object per job: the golden's place, digests and what was replaced; or, where one does not repeat
    itself, those jobs' objects of the comparison, with the verdict ``unstable``.

    Raises:
        UsageError: In CI, without a reason, in a tree with changes, or where a golden cannot be read or written.
        UntestableError: A target does not run to its end, ran partly unseen, or promises NaN or infinities.

    """
    commit = _refuse(project, options)
    runs: list[tuple[Job, Run]] = []
    unstable = []
    for job in jobs:
        options.progress(f"running {job.target}, on two servers")
        first = project.commits.here(job, check_finite=True)
        second = project.commits.here(at_level_of_run(job, first), instance=1)
        document = _compared(job, first, second)
        if document["verdict"] == "unstable":
            unstable.append({"recipe": _id(project, job), "target": job.target, **document})
        elif not options.allow_nonfinite:
            _require_finite(job, read_trace(first.trace))
        runs.append((job, first))
    if unstable:
        return unstable
    return [_record(project, job, run, commit, options.reason) for job, run in runs]


def _refuse(project: Project, options: BlessOptions) -> str:
    """The commit that is blessed, if anything may be."""
    if in_ci():
        raise UsageError(
            "bless-in-ci", "CI is set: a golden is blessed by a person who looks at the change, never by a CI job."
        )
    if not options.reason.strip():
        raise UsageError("no-reason", 'A golden needs a reason: --reason "why these numbers are right".')
    commit = project.repository.head()
    changed = project.commits.changed()
    if changed:
        shown = ", ".join(sorted(changed)[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise UsageError(
            "dirty-tree",
            f"The working tree has changes ({shown}): commit or stash them first, so that the golden has a commit.",
        )
    return commit


def _compared(job: Job, first: Run, second: Run) -> dict[str, Any]:
    for run in (first, second):
        if not run.testable:
            outcome = run.result.outcome
            raise UntestableError(
                outcome.get("slug", "untestable"), f"{job.target}: {outcome.get('message', '')}",
                outcome.get("traceback", ""),
            )  # fmt: skip
    document = compare_runs(first, second)
    if document["verdict"] == "untestable":
        raise UntestableError("unseen-operators", f"{job.target} cannot be blessed: {' '.join(document['notes'][-1:])}")
    if document["verdict"] == "diverged":
        document["verdict"] = "unstable"
    return document


def _require_finite(job: Job, trace: Trace) -> None:
    found = trace.manifest.get("nonfinite", [])
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise UntestableError(
            "nonfinite-contract",
            f"{job.target} promises NaN or infinities ({', '.join(map(str, found[:3]))}{more}): mend it, or bless it "
            "with --allow-nonfinite if they belong there.",
        )


def _record(project: Project, job: Job, run: Run, commit: str, reason: str) -> dict[str, Any]:
    recipe = _id(project, job)
    manifest = read_trace(run.trace).manifest
    before = project.goldens.find(recipe, str(manifest["environment"]["key"]))
    blessing = Blessing(
        who=_who(project),
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        why=reason.strip(),
        commit=commit,
        code=code_digest(project.repository, commit, project.goldens.folder),
        new=numerics_digest(manifest),
        old=None if before is None else before.latest.new,
    )
    target = relative_target(job.target, job.cwd, str(project.root))
    facts = {"target": target, "tree": project.repository.tree(commit)}
    golden = project.goldens.write(recipe, run.trace, blessing, facts)
    sizes = [int(entry["bytes"]) for entry in manifest["objects"].values()]
    return {
        "recipe": recipe,
        "target": target,
        "verdict": "ok",
        "commit": commit,
        "environment": golden.key,
        "profile": manifest["profile"],
        "path": os.path.relpath(golden.path, project.root),
        "old": blessing.old,
        "new": blessing.new,
        "bytes": sum(sizes),
        "committed": all(size <= MAX_COMMITTED for size in sizes),
    }


def _id(project: Project, job: Job) -> str:
    return recipe_id(job.target, job.cwd, str(project.root))


def _who(project: Project) -> str:
    """The author that git would write into a commit here."""
    answer = project.repository.command("var", "GIT_AUTHOR_IDENT")
    name = answer.output.decode(errors="replace").rpartition(">")[0]
    return f"{name}>" if answer.status == 0 and name else getpass.getuser()
