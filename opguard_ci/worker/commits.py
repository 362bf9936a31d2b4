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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from opguard_ci.config import Config
from opguard_ci.errors import UntestableError, UsageError
from opguard_ci.recipe import PROFILES, Decoration, Target, parse_target, peek
from opguard_ci.worker import client
from opguard_ci.worker.cache import cache_folder
from opguard_ci.worker.git import Repository
from opguard_ci.worker.identity import code_stamp
from opguard_ci.worker.kept import Runs
from opguard_ci.worker.layout import Overlay
from opguard_ci.worker.plan import ImportPlan
from opguard_ci.worker.request import Level, Profile, RunRequest, RunResult
from opguard_ci.worker.servers import Server
from opguard_ci.worker.tree import Checkout, Tree

ENVIRONMENT: Final = ":environment"
"""The target that runs nothing and returns the environment that a run would have (``capture.run``)."""
_OF_A_COMMIT: Final = frozenset(("target-not-found", "bad-target", "recipe-arguments", "cwd-missing"))
"""What is the user's mistake in the working tree, but in another commit means that it cannot be tested."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is run, whichever commit it is run at.

    ``pins``: files, absolute or relative to ``cwd``, that are laid over every commit. ``profile`` None: the target's
    own.
    """

    target: str
    cwd: str
    argv: tuple[str, ...] = ()
    profile: str | None = None
    level: str = "full"
    steps: int | None = None
    timeout: float | None = None
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its trace folder, how it ended, and whether it was measured now or kept from before."""

    trace: Path
    result: RunResult
    commit: str | None
    cached: bool = False

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

    def __init__(self, repository: Repository, config: Config) -> None:
        self.repository = repository
        self.config = config
        self._runs = Runs(cache_folder() / "runs")
        self._tree: Tree | None = None
        self._environments: dict[str, str] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="opguard-")

    def __enter__(self) -> Commits:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the tree and of traces that are not kept."""
        if self._tree is not None:
            self._tree.close()
            self._tree = None
        self._scratch.cleanup()

    # The working tree

    def here(self, job: Job, *, instance: int = 0, check_finite: bool = False) -> Run:
        """Run the target in the working tree, as it is. ``check_finite``: name contract values that are not finite."""
        commit = self.label()
        folder = self._new_folder()
        request = self._request(job, folder, job.cwd, str(self.repository.root), job.target)
        request = replace(request, commit=commit, check_finite=check_finite)
        server = self.server(job, instance)
        with self._environment():
            result = client.run(request, server=server)
        return Run(folder, result, commit)

    def label(self) -> str:
        """``<sha>`` of the working tree, or ``<sha>+dirty``."""
        return f"{self.repository.head()}+dirty" if self.changed() else self.repository.head()

    def changed(self) -> list[str]:
        """Paths of the working tree that differ from its commit, but for goldens, which no run reads."""
        golden = os.path.normpath(self.config.golden) + os.sep
        return [path for path in map(os.fsdecode, self.repository.dirty()) if not path.startswith(golden)]

    def server(self, job: Job, instance: int = 0) -> Server:
        """The fork server of the job's profile, started with the project's variables."""
        with self._environment():
            return Server.connect(self.profile(job), instance=instance)

    # Commits

    def at(
        self,
        job: Job,
        commit: str,
        *,
        expected: Path | None = None,
        instance: int = 0,
    ) -> Run:
        """Run the target at a commit (a full hash), or give back what an equal run left.

        ``expected``: stop after the first step whose contract differs from this file's digests. ``instance``: which of
        the fork servers of the profile; runs of two of them share neither hash seed nor heap. Whatever keeps a commit
        from being run makes the run untestable, with its reason.
        """
        server = self.server(job, instance)
        laid, notes = self._overlay(job, commit)
        key, environment = self._key(job, commit, laid, expected, instance), self.environment_key(server)
        kept = self._runs.find(key, environment)
        if kept is not None:
            return Run(kept.trace, kept.result, commit, cached=True)
        folder = self._new_folder()
        try:
            result = self._measure(job, commit, laid, folder, server, expected)
        except (UntestableError, UsageError) as error:
            if isinstance(error, UsageError) and error.slug not in _OF_A_COMMIT:
                raise
            result = RunResult("untestable", _failed(error), str(folder), 0.0)
        result.outcome["notes"] = [*result.outcome.get("notes", ()), *notes]
        self._runs.keep(key, environment, folder, result)
        return Run(folder, result, commit)

    def profile(self, job: Job) -> str:
        """The profile that all runs are made under: asked for, the recipe's own, the project's, or by kind."""
        if job.profile is not None:
            return job.profile
        found = self.declared(job)
        if found.profile in PROFILES:
            return str(found.profile)
        return self.config.profile or ("strict" if found.is_recipe else "observe")

    def declared(self, job: Job) -> Decoration:
        """What the working tree's source says about the target: whether it is a recipe, and its literal arguments."""
        target = self._target(job)
        return peek(target, target.search_path(job.cwd, str(self.repository.root)))

    def _timeout(self, job: Job) -> float:
        own = self.declared(job).literals.get("timeout")
        return job.timeout or (float(own) if isinstance(own, (int, float)) and own > 0 else self.config.timeout)

    def environment_key(self, server: Server) -> str:
        """The environment key that a run on this server has now."""
        if server.identity not in self._environments:
            request = RunRequest(ENVIRONMENT, str(self.repository.root), "", profile=cast(Profile, server.profile))
            with self._environment():
                outcome = client.run(request, server=server).outcome
            self._environments[server.identity] = outcome["environment"]["key"]
        return self._environments[server.identity]

    def _measure(
        self, job: Job, commit: str, laid: Overlay, folder: Path, server: Server, expected: Path | None
    ) -> RunResult:
        if self._tree is None:
            self._tree = Tree(self.repository)
        checkout = self._tree.checkout(commit, laid)
        if self.config.build:
            checkout = self._built(checkout, commit, laid)
        cwd = checkout.path / os.path.relpath(job.cwd, self.repository.root)
        cwd.mkdir(parents=True, exist_ok=True)
        target = self._target(job)
        first = Path(job.cwd) if target.file is None else target.file.parent
        first_root = os.path.relpath(first, self.repository.root) if self._is_inside(first) else "."
        plan = ImportPlan.of(
            checkout,
            user_root=self.repository.root,
            first_root=first_root.removeprefix("."),
            allowed=(str(folder), str(cache_folder())),
        )
        plan_file = Path(self._scratch.name) / f"{folder.name}.plan"
        plan.save(plan_file)
        request = self._request(job, folder, str(cwd), str(checkout.path), self._text(job, target, checkout, cwd))
        request = replace(
            request,
            commit=commit,
            tree=self.repository.tree(commit),
            plan=str(plan_file),
            expected=None if expected is None else str(expected),
        )
        # What many commits print would drown the report.
        with self._environment(), Path(os.devnull).open("wb") as null:
            return client.run(request, server=server, stdout=null.fileno(), stderr=null.fileno())

    def _request(self, job: Job, folder: Path, cwd: str, root: str, target: str) -> RunRequest:
        return RunRequest(
            target=target,
            cwd=cwd,
            output=str(folder),
            argv=job.argv,
            level=cast(Level, job.level),
            profile=cast(Profile, self.profile(job)),
            steps=job.steps,
            timeout=self._timeout(job),
            root=root,
        )

    # What is laid over a commit

    def _overlay(self, job: Job, commit: str) -> tuple[Overlay, list[str]]:
        root = self.repository.root
        pins: dict[str, bytes] = {}
        notes = []
        for name in self.config.pin:
            pins[name] = _read(root / name)
        for name in job.pins:
            place = os.path.relpath(Path(job.cwd, name), root)
            if place.startswith(".."):
                raise UsageError("bad-pin", f"{name} lies outside of the repository and cannot be laid over a commit.")
            pins[place] = _read(root / place)
        file = self.file(job)
        if file is not None and self._is_inside(file):
            place = os.path.relpath(file, root)
            held = {os.fsdecode(entry.path) for entry in self.repository.entries(commit)}
            if place not in held and place not in pins:
                pins[place] = _read(file)
                notes.append(f"{place} is not in this commit; the working tree's was laid over.")
        links = {name: root / name for name in self.config.link}
        return Overlay(pins, links), notes

    def _target(self, job: Job) -> Target:
        """The target as the working tree knows it; a file that only commits have is taken by its place."""
        try:
            return parse_target(job.target, job.cwd)
        except UsageError as error:
            path, _, function = job.target.rpartition(":")
            if error.slug != "target-not-found" or not path.endswith(".py"):
                raise
            return Target(job.target, Path(job.cwd, path).absolute(), None, function or None)

    def file(self, job: Job) -> Path | None:
        """The target's file in the working tree, if it has one there."""
        target = self._target(job)
        if target.file is not None:
            return target.file if target.file.is_file() else None
        parts = (target.module or "").split(".")
        for base in target.search_path(job.cwd, str(self.repository.root)):
            for file in (Path(base, *parts).with_suffix(".py"), Path(base, *parts, "__init__.py")):
                if file.is_file():
                    return file
        return None

    def _is_inside(self, file: Path | None) -> bool:
        return file is not None and file.resolve().is_relative_to(self.repository.root.resolve())

    def _text(self, job: Job, target: Target, checkout: Checkout, cwd: Path) -> str:
        """The target as the run in the tree has to name it."""
        if target.file is None or not self._is_inside(target.file):
            return job.target if target.file is None else _named(target, str(target.file))
        place = checkout.path / os.path.relpath(target.file, self.repository.root)
        return _named(target, os.path.relpath(place, cwd))

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
            self.repository.tree_hash(commit, self._paths(job)),
            job.target,
            list(job.argv),
            os.path.relpath(job.cwd, self.repository.root),
            self.profile(job),
            instance,
            "" if expected is None else expected.read_text(),
            job.level,
            job.steps,
            self.config.build,
            dict(self.config.env),
            {place: hashlib.sha256(data).hexdigest() for place, data in laid.pins.items()},
            {place: str(path) for place, path in laid.links.items()},
            self._outside(job),
        ]
        digest.update(json.dumps(parts, sort_keys=True).encode())
        return digest.hexdigest()

    def _paths(self, job: Job) -> list[str]:
        """The tracked paths that matter: the configured ones and the target's own file; empty means all."""
        file = self.file(job)
        if not self.config.paths or file is None or not self._is_inside(file):
            return list(self.config.paths)
        return [*self.config.paths, os.path.relpath(file, self.repository.root)]

    def _outside(self, job: Job) -> str:
        """The content of a target file that no commit holds."""
        file = self.file(job)
        return "" if file is None or self._is_inside(file) else hashlib.sha256(file.read_bytes()).hexdigest()

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="run-", dir=self._scratch.name))

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """``[tool.opguard] env`` in this process's environment, which runs inherit."""
        before = dict(os.environ)
        os.environ.update(self.config.env)
        try:
            yield
        finally:
            for name in self.config.env:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)


def _named(target: Target, path: str) -> str:
    return path if target.function is None else f"{path}:{target.function}"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError("bad-pin", f"{file} cannot be laid over commits: {error.strerror}.") from error


def _failed(error: UntestableError | UsageError) -> dict[str, Any]:
    return {"status": "untestable", "slug": error.slug, "message": error.message, "traceback": "", "notes": []}


__all__ = ["Commits", "Job", "Run"]
