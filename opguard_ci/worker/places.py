"""What a job means in one repository: its target's file, its profile, and what is laid over each commit."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from opguard_ci.config import Config
from opguard_ci.errors import UsageError
from opguard_ci.recipe import PROFILES, Decoration, Target, own_ranks, parse_target, peek
from opguard_ci.worker.git import Repository
from opguard_ci.worker.layout import Changes, Overlay
from opguard_ci.worker.tree import Checkout


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
    level: str = "auto"
    steps: int | None = None
    from_step: int | None = None
    to_step: int | None = None
    timeout: float | None = None
    pins: tuple[str, ...] = ()
    ranks: int | None = None


class Places:
    """Answers for one repository and its settings."""

    def __init__(self, repository: Repository, config: Config) -> None:
        self.repository = repository
        self.config = config

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
        target = self.target(job)
        return peek(target, target.search_path(job.cwd, str(self.repository.root)))

    def timeout(self, job: Job) -> float:
        """Seconds for one run: asked for, the recipe's own, or the project's."""
        own = self.declared(job).literals.get("timeout")
        return job.timeout or (float(own) if isinstance(own, (int, float)) and own > 0 else self.config.timeout)

    def ranks(self, job: Job) -> int:
        """In how many processes the job runs: asked for, or the recipe's own."""
        return job.ranks or own_ranks(self.declared(job).literals)

    def overlay(self, job: Job, commit: str, changes: Changes | None = None) -> tuple[Overlay, list[str]]:
        """What is laid over a commit, changed in some places, for this job; and what has to be said about it."""
        root, changes = self.repository.root, changes or {}
        pins = {place: _read(root / place) for place in self.pinned(job)}
        notes = []
        borrowed = self.borrowed(job, commit, changes)
        if borrowed is not None:
            pins[borrowed] = _read(root / borrowed)
            notes.append(f"{borrowed} is not in this commit; the working tree's was laid over.")
        links = {name: root / name for name in self.config.link}
        return Overlay(pins, links, changes), notes

    def borrowed(self, job: Job, commit: str, changes: Changes | None = None) -> str | None:
        """The path below the root of the target's file, if a commit lacks it and so runs the working tree's."""
        spots, changes = self.spots(job), changes or {}
        if not spots or set(spots) & set(self.pinned(job)):
            return None
        held = {entry.path for entry in self.repository.entries(commit)}
        raws = map(os.fsencode, spots)
        return None if any(changes.get(raw, raw in held) for raw in raws) else spots[-1]

    def spots(self, job: Job) -> list[str]:
        """Where below the root a commit may have the target's file: as it is named, and where the working tree's link
        of that name leads. Empty for a file outside, or that the working tree lacks.
        """
        file, target = self.file(job), self.target(job)
        if file is None or not self.is_inside(file):
            return []
        found = [file]
        if target.file is not None:
            named = Path(job.cwd, target.text.removesuffix(f":{target.function}"))
            found = [named.parent.resolve() / named.name, file]
        places = (os.path.relpath(each, self.repository.root) for each in found)
        return list(dict.fromkeys(place for place in places if not _leads_out(place)))

    def pinned(self, job: Job) -> list[str]:
        """The paths below the root that are laid over every commit."""
        found = list(self.config.pin)
        for name in job.pins:
            place = os.path.relpath(Path(job.cwd, name), self.repository.root)
            if place.startswith(".."):
                raise UsageError("bad-pin", f"{name} lies outside of the repository and cannot be laid over a commit.")
            found.append(place)
        return found

    def target(self, job: Job) -> Target:
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
        target = self.target(job)
        if target.file is not None:
            return target.file if target.file.is_file() else None
        parts = (target.module or "").split(".")
        for base in target.search_path(job.cwd, str(self.repository.root)):
            for file in (Path(base, *parts).with_suffix(".py"), Path(base, *parts, "__init__.py")):
                if file.is_file():
                    return file
        return None

    def is_inside(self, file: Path | None) -> bool:
        """Whether a path lies in the working tree."""
        return file is not None and file.resolve().is_relative_to(self.repository.root.resolve())

    def named_in_tree(self, job: Job, checkout: Checkout, cwd: Path) -> str:
        """The target as the run in the tree has to name it."""
        target = self.target(job)
        if target.file is None or not self.is_inside(target.file):
            return job.target if target.file is None else _named(target, str(target.file))
        return _named(target, os.path.relpath(self._in_tree(job, target.file, checkout), cwd))

    def _in_tree(self, job: Job, file: Path, checkout: Checkout) -> Path:
        """The target's file in a commit's tree."""
        spots = [*self.spots(job), os.path.relpath(file, self.repository.root)]
        return checkout.path / next((spot for spot in spots if os.path.lexists(checkout.path / spot)), spots[-1])

    def first_root(self, job: Job, checkout: Checkout) -> str:
        """The folder below the root that stands first in ``sys.path``; empty for the root, or for a place outside."""
        file, root = self.target(job).file, self.repository.root.resolve()
        if file is None:
            first = Path(job.cwd).resolve()
        elif self.is_inside(file):
            first, root = self._in_tree(job, file, checkout).resolve().parent, checkout.path.resolve()
        else:
            return ""
        place = os.path.relpath(first, root)
        return "" if place == "." or _leads_out(place) else place

    def paths(self, job: Job) -> list[str]:
        """The tracked paths that matter: the configured ones and the target's own file; empty means all."""
        return [*self.config.paths, *self.spots(job)] if self.config.paths else []

    def outside(self, job: Job) -> str:
        """The content of a target file that no commit holds."""
        file = self.file(job)
        return "" if file is None or self.is_inside(file) else hashlib.sha256(file.read_bytes()).hexdigest()

    def inputs(self, laid: Overlay) -> list[tuple[str, int, int]]:
        """Size and time of every linked input: what a kept run read must still be what a new one would read."""
        found = []
        for place, path in sorted(laid.links.items()):
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            for file in files:
                status = file.stat()
                found.append((f"{place}:{os.path.relpath(file, path)}", status.st_size, status.st_mtime_ns))
        return found


def _named(target: Target, path: str) -> str:
    return path if target.function is None else f"{path}:{target.function}"


def _leads_out(place: str) -> bool:
    """Whether a relative path leads out of the folder that it is relative to."""
    return place == os.pardir or place.startswith(os.pardir + os.sep)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError("bad-pin", f"{file} cannot be laid over commits: {error.strerror}.") from error
