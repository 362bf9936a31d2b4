"""The trace of one run while it grows: manifest, steps, coverage."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from ..determinism import environment
from ..errors import OpguardError
from ..recipe import RecipeOptions
from ..tolerance import shown
from ..trace.digest import step_digests
from ..trace.flagged import Flagged
from ..trace.model import SCHEMA, StepTable
from ..trace.writer import TraceWriter
from ..worker.request import RunRequest
from . import native
from .keep import keep
from .promises import Promises
from .session import Session
from .steps import EnoughSteps, enough
from .window import Window

_MAX_NONFINITE: Final = 100
_EAGER_STEPS: Final = 4
"""The manifest is written after each of so many steps: most recipes have no more."""
_MANIFEST_SHARE: Final = 0.02
"""How much of a longer run's time may go into manifests: writing one takes time that grows with the number of steps."""
_MANIFEST_EVERY: Final = 0.5
"""Seconds between two manifests at most, in a run whose steps are short."""


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

    def __init__(self, request: RunRequest, folder: str | None = None) -> None:
        """``folder``: of the target's file, where paths begin that do not lie in the tree."""
        root = request.root or request.cwd
        document = environment.environment_document()
        profile = request.profile or "observe"
        self._rank = request.rank or 0
        window = None
        if (request.from_step, request.to_step) != (None, None):
            window = Window(request.from_step, request.to_step)
        self._writer = TraceWriter(Path(request.output), self._rank)
        self._request = request
        self._expected = _expected(request)
        compiled, reason = native.load()
        if request.keep is not None:
            compiled, reason = None, "what is kept is taken from calls that Python sees"
        self._manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "target": request.target,
            "argv": list(request.argv),
            "cwd": os.path.relpath(request.cwd, root),
            "commit": request.commit,
            "tree": request.tree,
            "edits": request.edits,
            "environment": {"key": environment.environment_key(document, profile), "document": document},
            "profile": profile,
            "level": "",
            "recorder": {"kind": "compiled"} if compiled is not None else {"kind": "python", "reason": reason},
            "scheme": "",
            "ranks": request.ranks,
            "coverage": {"operators": 0, "hashed": 0, "unhashed": [], "unseen": []},
            "asked_steps": request.steps,
            "steps": [],
            "objects": {},
            "notes": [],
            "tolerance": {},
            "unstable": {},
            "window": None if window is None else {"from": window.first, "to": window.last},
            "allow_unseen": request.allow_unseen,
            "outcome": None,
            "findings": [],
            "last_operator": None,
            "complete": False,
        }
        self._flagged = Flagged()
        if request.rank is not None:  # a part of the manifest: see trace.ranks
            self._manifest["rank"] = request.rank
        self._pid = os.getpid()
        self._manifest_due = 0.0
        self.broken: OpguardError | None = None
        """Why the trace cannot go on (a full disk)."""
        self.session = Session(root, self._write_step, folder, request.level, compiled)
        if window is not None:
            self.session.look_only_at(window)
            self.note(f"Operators were recorded {window} only; of the other steps, the contract.")
        if request.check_finite:
            self.session.contract.nonfinite = []
        if request.keep is not None:
            keep(self.session, Path(request.keep), request.rank)
        if request.breadcrumb:
            self.session.leave_breadcrumbs_in(request.breadcrumb)

    def promise(self, options: RecipeOptions) -> None:
        """The recipe says what its contract allows."""
        if options.tolerance or options.unstable:
            self.session.contract.promises = Promises(options.tolerance, options.unstable)
            self._manifest["tolerance"] = {name: limit.to_json() for name, limit in options.tolerance.items()}
            self._manifest["unstable"] = dict(options.unstable)
        if options.tolerance:
            self.note(f"Tolerance of the recipe: {shown(options.tolerance)}.")
        for pattern, reason in options.unstable.items():
            self.note(f"Declared unstable and not judged: {pattern} ({reason}).")

    def require_matches(self) -> None:
        """Raise ``UntestableError`` for patterns of the recipe that fit nothing in the whole run."""
        session = self.session
        if session.contract.promises is not None:
            session.contract.promises.require_all_matched(
                None if session.level == "contract" else session.strings.op.strings
            )

    def _write_step(self, table: StepTable) -> None:
        steps = self._manifest["steps"]
        try:
            if self.session.contract.promises is not None and (rows := self.session.contract.promises.take()):
                self._writer.write_known(rows)
            self._writer.write_step(table)
            steps.append(self._entry(table))
            begin = time.monotonic()
            if len(steps) <= _EAGER_STEPS or begin >= self._manifest_due:
                self._manifest["coverage"] = self._coverage()
                self._write_manifest()
                end = time.monotonic()
                self._manifest_due = end + min((end - begin) / _MANIFEST_SHARE, _MANIFEST_EVERY)
        except OpguardError as error:
            self.broken = error
            self.session.discard()
            raise enough() from error
        self._stop_if_unexpected(table.step)

    def _entry(self, table: StepTable) -> dict[str, Any]:
        mine = {"events": len(table), "digests": step_digests(table), "flagged": self._flagged.events(table)}
        if self._request.rank is None:
            return {"step": table.step, **mine}
        ranks = [mine if rank == self._rank else None for rank in range(self._request.ranks)]
        return {"step": table.step, "events": len(table), "digests": {}, "ranks": ranks}

    def _write_manifest(self) -> None:
        self._manifest["scheme"] = self.session.scheme
        self._manifest["level"] = self.session.level
        self._writer.write_manifest(self._manifest)

    def _stop_if_unexpected(self, step: int) -> None:
        if self._expected is None or self.session.over or self.session.contract.promises is not None:
            return  # where something may differ, other digests decide nothing
        mine = self._manifest["steps"][-1]["digests"].get("contract")
        if self._expected.get(str(step), mine) != mine:
            self.note(f"Stopped after step {step}, the first that differs from the reference.")
            self.session.discard()
            raise enough()

    @property
    def is_forked(self) -> bool:
        """Whether this process is one that the target forked: the trace belongs to its parent."""
        return os.getpid() != self._pid

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the trace open; whatever happens, it is closed and readable."""
        self._write_manifest()
        try:
            yield
        finally:
            self.session.end()
            if not self.is_forked:
                self._writer.close()

    def note(self, sentence: str) -> None:
        """Say something about this run in its manifest."""
        if sentence not in self._manifest["notes"]:
            self._manifest["notes"].append(sentence)

    def finish(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Write what is left and the final manifest; returns the whole outcome."""
        if self.is_forked:
            return outcome
        failed_at = time.monotonic()
        with suppress(EnoughSteps):
            self.session.close()
        self._manifest["objects"] = self._writer.close()
        if self.broken is not None:
            outcome = failure(self.broken.slug, self.broken.message)
        if self.session.contract.nonfinite is not None:
            self._manifest["nonfinite"] = self.session.contract.nonfinite[:_MAX_NONFINITE]
        coverage = self._manifest["coverage"] = self._coverage()
        if outcome["status"] == "ok" and coverage["unseen"] and not self._request.allow_unseen:
            self.note(
                "Some operators ran where capture could not see them; identical and equivalent become untestable."
            )
        self._manifest["outcome"] = {
            key: outcome[key] for key in ("status", "slug", "message", "exit") if key in outcome
        }
        self._manifest["complete"] = outcome["status"] == "ok"
        with suppress(OpguardError) if self.broken is not None else nullcontext():  # it is said already
            self._write_manifest()
        if self._request.rank is not None and outcome["status"] != "ok":
            outcome = {**outcome, "failed_at": failed_at}
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
            "operators": session.rows.num_calls,
            "hashed": session.rows.num_hashed,
            "unhashed": [f"{op}: {reason}" for op, reason in sorted(session.unhashed_operators.items())],
            "unseen": sorted(session.unseen),
        }
