"""The trace of one run while it grows: manifest, steps, coverage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ..determinism import environment
from ..trace.digest import step_digests
from ..trace.model import SCHEMA, StepTable
from ..trace.writer import TraceWriter
from ..worker.request import RunRequest
from .fingerprint.cpu import SCHEME
from .session import Session
from .steps import EnoughSteps

_MAX_NONFINITE: Final = 100


def failure(slug: str, message: str, traceback: str = "") -> dict[str, Any]:
    """The outcome of a run that did not come to its end. ``traceback``: the user's own frames."""
    return {"status": "untestable", "slug": slug, "message": message, "traceback": traceback}


def _expected(request: RunRequest) -> dict[str, str | None] | None:
    if request.expected is None:
        return None
    found: dict[str, str | None] = json.loads(Path(request.expected).read_text())
    return found


class Recording:
    """The trace of one run while it grows."""

    def __init__(self, request: RunRequest, root: str) -> None:
        document = environment.environment_document()
        profile = request.profile or "observe"
        self._writer = TraceWriter(Path(request.output))
        self._request = request
        self._expected = _expected(request)
        self._manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "target": request.target,
            "argv": list(request.argv),
            "cwd": os.path.relpath(request.cwd, root),
            "commit": request.commit,
            "tree": request.tree,
            "environment": {"key": environment.environment_key(document, profile), "document": document},
            "profile": profile,
            "level": request.level,
            "scheme": SCHEME,
            "ranks": 1,
            "coverage": {"operators": 0, "hashed": 0, "unhashed": [], "unseen": []},
            "steps": [],
            "objects": {},
            "notes": [],
            "complete": False,
        }
        self.session = Session(root, self._write_step)
        if request.check_finite:
            self.session.nonfinite = []
        if request.breadcrumb:
            self.session.leave_breadcrumbs_in(request.breadcrumb)

    def _write_step(self, table: StepTable) -> None:
        self._writer.write_step(table)
        self._manifest["steps"].append({"step": table.step, "events": len(table), "digests": step_digests(table)})
        self._manifest["coverage"] = self._coverage()
        self._writer.write_manifest(self._manifest)
        self._stop_if_unexpected(table.step)

    def _stop_if_unexpected(self, step: int) -> None:
        if self._expected is None or self.session.closed:
            return
        mine = self._manifest["steps"][-1]["digests"].get("contract")
        if self._expected.get(str(step), mine) != mine:
            self.note(f"Stopped after step {step}, the first that differs from the reference.")
            raise EnoughSteps

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the trace open; whatever happens, it is closed and readable."""
        self._writer.write_manifest(self._manifest)
        try:
            yield
        finally:
            self.session.closed = True
            self._writer.close()

    def note(self, sentence: str) -> None:
        """Say something about this run in its manifest."""
        if sentence not in self._manifest["notes"]:
            self._manifest["notes"].append(sentence)

    def finish(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Write what is left and the final manifest; returns the whole outcome."""
        self.session.close()
        self._manifest["objects"] = self._writer.close()
        if self.session.nonfinite is not None:
            self._manifest["nonfinite"] = self.session.nonfinite[:_MAX_NONFINITE]
        coverage = self._manifest["coverage"] = self._coverage()
        if outcome["status"] == "ok" and coverage["unseen"] and not self._request.allow_unseen:
            self.note(
                "Some operators ran where capture could not see them; identical and equivalent become untestable."
            )
        self._manifest["outcome"] = {key: outcome[key] for key in ("status", "slug", "message") if key in outcome}
        self._manifest["complete"] = outcome["status"] == "ok"
        self._writer.write_manifest(self._manifest)
        return {
            **outcome,
            "steps": len(self._manifest["steps"]),
            "coverage": coverage,
            "notes": self._manifest["notes"],
        }

    def _coverage(self) -> dict[str, Any]:
        session = self.session
        session.look_at_children()
        for note in sorted(session.notes):
            self.note(note)
        return {
            "operators": session.num_operators,
            "hashed": session.num_hashed,
            "unhashed": [f"{op}: {reason}" for op, reason in sorted(session.unhashed_operators.items())],
            "unseen": sorted(session.unseen),
        }
