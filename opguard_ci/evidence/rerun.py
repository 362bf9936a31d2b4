"""Runs both sides of a verdict again to look closer: how ``check`` and ``bisect`` zoom."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_ci.evidence.reproducer import NoReproducerError, write_reproducer
from opguard_ci.evidence.zoom import CannotZoomError, Side, zoom
from opguard_ci.trace.reader import read_trace

if TYPE_CHECKING:
    from opguard_ci.guard import Project
    from opguard_ci.reference import Reference
    from opguard_ci.worker.commits import Commits, Run
    from opguard_ci.worker.places import Job


def zoom_check(project: Project, job: Job, chosen: Reference, document: dict[str, Any], repro: Path | None) -> None:
    """Measure what differs, by runs of the reference's commit and of the working tree."""
    golden, path = chosen.golden, document["reference"]["trace"]
    commit = chosen.commit if golden is None else project.references.commit_of(golden)
    if commit is None:  # which is said already
        return
    is_golden = golden is not None and path == str(golden.path)
    trace = golden.trace if golden is not None and is_golden else read_trace(path)

    def here(plan: Path | None) -> Run:
        return project.commits.here(job, instance=int(plan is None), keep=plan)

    zoom_sides(
        document,
        Side("reference", trace, again_at(project.commits, job, commit), recorded_here=not is_golden),
        Side("candidate", read_trace(document["candidate"]["trace"]), here),
        repro=None if repro is None else str(repro),
    )
    first, code = document["first_divergence"], document.get("attribution", {}).get("code") or {}
    alone = code.get("first_divergence")
    if alone is not None and alone["events"] == first["events"] and not is_golden:  # of the same two runs
        alone["tensors"] = first["tensors"]


def again_at(commits: Commits, job: Job, commit: str) -> Callable[[Path | None], Run]:
    """How to run a commit again for ``Side``."""
    return lambda plan: commits.at(job, commit, instance=int(plan is None), keep=plan)


def zoom_sides(
    document: dict[str, Any], reference: Side, candidate: Side, *, repro: str | None = None, refuse: bool = False
) -> None:
    """Fill the tensors of a document's divergence, and write a reproducer to the folder ``repro``.

    What cannot be had, a note says; with ``refuse`` it is raised, since it was asked for.

    Raises:
        CannotZoomError: A side cannot be run again here.
        NoReproducerError: The operator cannot be repeated by a script of torch alone.

    """
    if document["first_divergence"] is None:
        return
    with tempfile.TemporaryDirectory(prefix="opguard-zoom-") as scratch:
        try:
            zoomed = zoom(document, reference, candidate, Path(scratch))
            if repro is not None and document["verdict"] == "diverged":
                write_reproducer(Path(repro), zoomed.calls, document)
                document["reproducer"] = repro
        except CannotZoomError as error:
            if refuse:
                raise
            document["notes"].append(f"Not zoomed: {error.message}")
        except NoReproducerError as error:
            if refuse:
                raise
            document["notes"].append(error.message)
