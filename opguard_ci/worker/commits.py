"""Runs a target at a commit, or in the working tree as it is, and keeps what a commit's run gave.

A commit's code comes from its own clean tree (``worker.tree``) and is proven to be what ran (``worker.proof``). Each
commit runs its own copy of the target's file; where it has none, the working tree's is laid over, and that is said.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from opguard_ci.config import Config
from opguard_ci.errors import UntestableError, UsageError
from opguard_ci.worker import client
from opguard_ci.worker.cache import cache_folder
from opguard_ci.worker.edits import edits_of, without_reports
from opguard_ci.worker.git import Repository
from opguard_ci.worker.identity import DEFAULT_ENTRY, code_stamp
from opguard_ci.worker.kept import Runs
from opguard_ci.worker.layout import Changes, Overlay
from opguard_ci.worker.places import Job, Places
from opguard_ci.worker.plan import ImportPlan
from opguard_ci.worker.request import Level, Profile, RunRequest, RunResult
from opguard_ci.worker.scratch import Scratch
from opguard_ci.worker.servers import Server
from opguard_ci.worker.tree import Checkout, Tree

ENVIRONMENT: Final = ":environment"
"""The target that runs nothing and returns the environment that a run would have (``capture.run``)."""
_OF_A_COMMIT: Final = frozenset(("target-not-found", "bad-target", "recipe-arguments", "cwd-missing"))
"""What is the user's mistake in the working tree, but in another commit means that it cannot be tested."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its trace folder, how it ended, and whether it was measured now or kept from before.

    ``changes``: what was laid over the commit in place of its own files.
    """

    trace: Path
    result: RunResult
    commit: str | None
    cached: bool = False
    changes: Changes = field(default_factory=dict)

    @property
    def testable(self) -> bool:
        """Whether the run came to its end."""
        return self.result.status == "ok"

    @property
    def reason(self) -> str:
        """Why it did not."""
        outcome = self.result.outcome
        return f"{outcome.get('slug', 'untestable')}: {outcome.get('message', '')}"


class Commits:
    """Runs one project's targets. Holds a tree while it is open; several may be open at once."""

    entry: ClassVar[str] = DEFAULT_ENTRY
    """What runs a target in a child of a fork server (``module:function``)."""

    def __init__(self, repository: Repository, config: Config) -> None:
        self.repository = repository
        self.config = config
        self.places = Places(repository, config)
        self._runs = Runs(cache_folder() / "runs")
        self._tree: Tree | None = None
        self._environments: dict[tuple[str, int], str] = {}
        self._scratch = Scratch()

    def __enter__(self) -> Commits:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the tree and of traces that are not kept."""
        if self._tree is not None:
            self._tree.close()
            self._tree = None
        self._scratch.close()

    # The working tree

    def here(self, job: Job, *, instance: int = 0, check_finite: bool = False, keep: Path | None = None) -> Run:
        """Run the target in the working tree, as it is. ``check_finite``: name contract values that are not finite.

        ``keep``: what to keep, see ``RunRequest``; such a run is silent.
        """
        request = replace(self.request(job), check_finite=check_finite, keep=_text(keep))
        server = self.server(job, instance)
        with project_variables(self.config), Path(os.devnull).open("wb") as null:
            output = None if keep is None else null.fileno()
            result = client.run(request, server=server, stdout=output, stderr=output)
        return Run(Path(request.output), result, request.commit)

    def request(self, job: Job) -> RunRequest:
        """The request for a run of the working tree, into a new folder."""
        head, changed = self.repository.head(), self.changed()
        request = self._request(job, self._new_folder(), job.cwd, str(self.repository.root), job.target)
        if not changed:
            return replace(request, commit=head)
        edits = edits_of(self.repository, changed)
        return replace(request, commit=f"{head}+dirty", edits=edits)

    def changed(self) -> list[str]:
        """Paths of the working tree that differ from its commit, but for goldens, Python's own ``__pycache__``, and
        traces and reproducers that earlier runs left.
        """
        golden = os.path.normpath(self.config.golden) + os.sep
        paths = [path for path in map(os.fsdecode, self.repository.dirty()) if not path.startswith(golden)]
        return without_reports(self.repository.root, (p for p in paths if "__pycache__" not in Path(p).parts))

    def server(self, job: Job, instance: int = 0) -> Server:
        """The fork server of the job's profile, started with the project's variables."""
        with project_variables(self.config):
            return Server.connect(self.places.profile(job), instance=instance, entry=self.entry)

    # Commits

    def at(
        self,
        job: Job,
        commit: str,
        *,
        expected: Path | None = None,
        instance: int = 0,
        changes: Changes | None = None,
        fresh: bool = False,
        keep: Path | None = None,
    ) -> Run:
        """Run the target at a commit (a full hash), or give back what an equal run left.

        ``expected``: stop after the first step whose contract differs from this file's digests. ``instance``: which of
        the fork servers of the profile; runs of two of them share neither hash seed nor heap. ``changes``: what takes
        the place of the commit's own files. ``fresh``: run it now in any case. ``keep``: what to keep, see
        ``RunRequest``; such a run is made in any case, too. Whatever keeps a commit from being run makes the run
        untestable, with its reason.
        """
        server = self.server(job, instance)
        laid, notes = self.places.overlay(job, commit, changes)
        key = self._key(job, commit, laid, expected, instance)
        environment = self.environment_key(server, self.places.ranks(job))
        kept = None if fresh or keep is not None else self._runs.find(key, environment)
        if kept is not None:
            return Run(kept.trace, kept.result, commit, cached=True, changes=laid.changes)
        folder = self._new_folder()
        try:
            result = self._measure(job, commit, laid, folder, server, stops=(expected, keep))
        except (UntestableError, UsageError) as error:
            if isinstance(error, UsageError) and error.slug not in _OF_A_COMMIT:
                raise
            result = RunResult("untestable", _failed(error), str(folder), 0.0)
        result.outcome["notes"] = [*result.outcome.get("notes", ()), *notes]
        if keep is None:
            self._runs.keep(key, environment, folder, result)
        return Run(folder, result, commit, changes=laid.changes)

    def environment_key(self, server: Server, ranks: int = 1) -> str:
        """The environment key that a run on this server has now, in so many processes."""
        asked = server.identity, ranks
        if asked not in self._environments:
            profile = cast(Profile, server.profile)
            request = RunRequest(ENVIRONMENT, str(self.repository.root), "", profile=profile, ranks=ranks)
            with project_variables(self.config):
                outcome = client.run(request, server=server).outcome
            self._environments[asked] = outcome["environment"]["key"]
        return self._environments[asked]

    def _measure(
        self,
        job: Job,
        commit: str,
        laid: Overlay,
        folder: Path,
        server: Server,
        *,
        stops: tuple[Path | None, Path | None],
    ) -> RunResult:
        """``stops``: the files ``expected`` and ``keep`` of the request."""
        if self._tree is None:
            self._tree = Tree(self.repository)
        checkout = self._tree.checkout(commit, laid)
        if self.config.build:
            checkout = self._built(checkout, commit, laid)
        cwd = checkout.path / os.path.relpath(job.cwd, self.repository.root)
        cwd.mkdir(parents=True, exist_ok=True)
        plan = ImportPlan.of(
            checkout,
            user_root=self.repository.root,
            first_root=self.places.first_root(job, checkout),
            allowed=(str(folder), str(cache_folder()), *(str(file.parent) for file in stops if file is not None)),
        )
        plan_file = self._scratch.path / f"{folder.name}.plan"
        plan.save(plan_file)
        request = self._request(
            job, folder, str(cwd), str(checkout.path), self.places.named_in_tree(job, checkout, cwd)
        )
        request = replace(
            request,
            commit=f"{commit}+dirty" if laid.changes else commit,
            tree=None if laid.changes else self.repository.tree(commit),
            plan=str(plan_file),
            # A rank that stops early would leave the others waiting for it.
            expected=_text(stops[0]) if request.ranks == 1 else None,
            keep=_text(stops[1]),
        )
        # What many commits print would drown the report.
        with project_variables(self.config), Path(os.devnull).open("wb") as null:
            result = client.run(request, server=server, stdout=null.fileno(), stderr=null.fileno())
        _say_what_the_tree_lacks(result, checkout)
        return result

    def _request(self, job: Job, folder: Path, cwd: str, root: str, target: str) -> RunRequest:
        return RunRequest(
            target=target,
            cwd=cwd,
            output=str(folder),
            argv=job.argv,
            level=cast(Level, job.level),
            profile=cast(Profile, self.places.profile(job)),
            steps=job.steps,
            from_step=job.from_step,
            to_step=job.to_step,
            timeout=self.places.timeout(job),
            ranks=self.places.ranks(job),
            root=root,
        )

    def _built(self, checkout: Checkout, commit: str, laid: Overlay) -> Checkout:
        """The tree with what the build command makes; kept while the same commit stays."""
        assert self._tree is not None and self.config.build is not None
        if checkout.built:
            return checkout
        done = subprocess.run(self.config.build, shell=True, cwd=checkout.path, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise UntestableError(
                "build-failed", f"{self.config.build!r} ended with {done.returncode}: {' '.join(last)}"
            )
        return replace(checkout, built=self._tree.adopt())

    # What a run depends on

    def _key(self, job: Job, commit: str, laid: Overlay, expected: Path | None, instance: int) -> str:
        digest = hashlib.sha256()
        parts: list[Any] = [
            code_stamp(),
            self.repository.identity,
            self.repository.tree_hash(commit, self.places.paths(job)),
            job.target,
            list(job.argv),
            os.path.relpath(job.cwd, self.repository.root),
            self.places.profile(job),
            instance,
            "" if expected is None else expected.read_text(),
            job.level,
            [job.steps, job.from_step, job.to_step],
            self.places.ranks(job),
            self.config.build,
            dict(self.config.env),
            {place: hashlib.sha256(data).hexdigest() for place, data in laid.pins.items()},
            [(os.fsdecode(path), item and (item.mode, item.id)) for path, item in sorted(laid.changes.items())],
            self.places.inputs(laid),
            self.places.outside(job),
        ]
        digest.update(json.dumps(parts, sort_keys=True).encode())
        return digest.hexdigest()

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="run-", dir=self._scratch.path))


_variables = threading.RLock()
_saved: dict[str, str | None] = {}
_users = 0


@contextlib.contextmanager
def project_variables(config: Config) -> Iterator[None]:
    """``[tool.opguard] env`` in this process's environment, which runs inherit. Threads may be inside together."""
    global _users
    with _variables:
        if _users == 0:
            _saved.update({name: os.environ.get(name) for name in config.env})
        _users += 1
        os.environ.update(config.env)
    try:
        yield
    finally:
        with _variables:
            _users -= 1
            if _users == 0:
                for name, value in _saved.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value
                _saved.clear()


def _say_what_the_tree_lacks(result: RunResult, checkout: Checkout) -> None:
    outcome = result.outcome
    outcome["notes"] = [*outcome.get("notes", ()), *(f"{note[0].upper()}{note[1:]}." for note in checkout.notes)]
    if result.status != "ok" and checkout.notes:
        outcome["message"] = f"{outcome.get('message', '')} ({'; '.join(checkout.notes)})"


def _text(file: Path | None) -> str | None:
    return None if file is None else str(file)


def _failed(error: UntestableError | UsageError) -> dict[str, Any]:
    return {"status": "untestable", "slug": error.slug, "message": error.message, "traceback": "", "notes": []}
