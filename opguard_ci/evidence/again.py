"""Runs what a trace was recorded of again, as its manifest tells: in the working tree, or from its commit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

from opguard_ci.errors import UsageError
from opguard_ci.evidence.rerun import again_at
from opguard_ci.evidence.zoom import CannotZoomError, Side
from opguard_ci.trace.reader import Trace
from opguard_ci.worker import client
from opguard_ci.worker.checkout import find_checkout
from opguard_ci.worker.commits import Commits, Run
from opguard_ci.worker.places import Job
from opguard_ci.worker.request import RunRequest
from opguard_ci.worker.scratch import Scratch
from opguard_ci.worker.servers import Server


class Reruns:
    """Makes sides of a zoom from traces. Open it as a context manager: it may hold a tree of the cache."""

    def __init__(self, cwd: Path) -> None:
        """``cwd``: the caller's folder, in the repository of the traces."""
        self._cwd = cwd
        self._checkout = find_checkout(cwd)
        self._stack = ExitStack()
        self._commits: Commits | None = None
        self.scratch = Path(self._stack.enter_context(Scratch()))

    def __enter__(self) -> Reruns:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def side(self, name: str, trace: Trace) -> Side:
        """The side of a zoom that a trace is.

        Raises:
            CannotZoomError: Its code is not at hand.

        """
        request = self.request(name, trace)
        return Side(name, trace, self._at(trace) if request is None else again_here(request, self.scratch))

    def request(self, name: str, trace: Trace) -> RunRequest | None:
        """The run of a trace in the working tree, if that still holds its code; None if its commit has to be run."""
        manifest, here = trace.manifest, self._checkout
        commit, plus, _ = (manifest["commit"] or "").partition("+")
        if commit and here.root is None:
            _refuse(name, f"it was recorded at commit {commit[:12]}, and this folder is in no repository")
        is_here = (manifest["commit"], manifest["edits"]) == (here.commit, here.edits)
        if not is_here:
            if not commit:
                _refuse(
                    name,
                    "it was recorded outside of a repository, and the Python files in this folder are others now",
                )
            if plus:
                _refuse(
                    name, "it was recorded with changes that were not committed and are not there now; record it again"
                )
            self._check(name, commit)
            return None
        if not commit and manifest["edits"] is None:
            _refuse(
                name, "it was recorded outside of a repository, so that nothing tells whether its code is still here"
            )
        cwd = os.path.normpath(Path(here.root or self._cwd, manifest["cwd"]))
        return RunRequest(
            target=manifest["target"],
            cwd=cwd,
            output="",
            argv=tuple(manifest["argv"]),
            level=cast(Any, manifest["level"]),
            profile=cast(Any, manifest["profile"]),
            ranks=manifest["ranks"],
            from_step=(manifest["window"] or {}).get("from"),
            to_step=(manifest["window"] or {}).get("to"),
            root=here.root,
            commit=here.commit,
            tree=here.tree,
        )

    def _check(self, name: str, commit: str) -> None:
        try:
            self._open().repository.resolve(commit)
        except UsageError as error:
            _refuse(name, error.message.rstrip("."))

    def _at(self, trace: Trace) -> Callable[[Path | None], Run]:
        manifest = trace.manifest
        commits = self._open()
        cwd = os.path.normpath(Path(commits.repository.root, manifest["cwd"]))
        window = manifest["window"] or {}
        job = Job(
            manifest["target"],
            cwd,
            tuple(manifest["argv"]),
            profile=manifest["profile"],
            level=manifest["level"],
            ranks=manifest["ranks"],
            from_step=window.get("from"),
            to_step=window.get("to"),
        )
        return again_at(commits, job, manifest["commit"])

    def _open(self) -> Commits:
        if self._commits is None:
            from opguard_ci.guard import Project

            project = self._stack.enter_context(Project(self._cwd))
            self._commits = project.commits
        return self._commits


def again_here(request: RunRequest, scratch: Path) -> Callable[[Path | None], Run]:
    """How to make a run of the working tree again, for ``Side``; silently, with its trace below ``scratch``."""

    def again(plan: Path | None) -> Run:
        folder = Path(tempfile.mkdtemp(prefix="again-", dir=scratch))
        wanted = replace(request, output=str(folder), keep=None if plan is None else str(plan))
        server = Server.connect(str(request.profile), instance=int(plan is None))
        with Path(os.devnull).open("wb") as null:
            result = client.run(wanted, server=server, stdout=null.fileno(), stderr=null.fileno())
        return Run(folder, result, request.commit)

    return again


def _refuse(name: str, why: str) -> NoReturn:
    raise CannotZoomError(
        "cannot-run-again",
        f"The {name} cannot be run again: {why}. Without looking closer, its operator is still named.",
    )
