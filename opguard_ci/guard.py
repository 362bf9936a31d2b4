"""Runs a target as it is now and as its reference was, and compares: what check, the pytest plugin and bisect share."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .compare.verdict import compare_traces, nothing_compared
from .config import Config, load_config
from .errors import IncomparableError, UsageError
from .evidence.attribution import PASSING, attribute, why_not
from .evidence.rerun import zoom_check
from .recipe import LEVELS
from .reference import Reference, References, Wanted
from .store.golden import Golden, Goldens, numerics_digest
from .store.recipes import recipe_id, relative_target
from .trace.reader import Trace, read_trace
from .worker.cache import cache_folder
from .worker.commits import Commits, Run
from .worker.git import Repository
from .worker.history import commits_between
from .worker.places import Job


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of one target: the object of ``compare`` with what it was compared with."""

    target: str
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The verdict's name."""
        return str(self.document["verdict"])


class Project:
    """A checkout with its settings. Open it as a context manager: it holds a git reader and a tree of the cache."""

    def __init__(
        self, cwd: str | os.PathLike[str], *, golden: str | None = None, runs: type[Commits] = Commits
    ) -> None:
        """``golden``: a folder relative to ``cwd``, in place of the project's own; ``runs``: how targets are run."""
        self.repository = Repository(cwd)
        self.root: Path = self.repository.root
        self.config: Config = load_config(self.root)
        if golden is not None:
            self.config = replace(self.config, golden=os.path.relpath(Path(cwd, golden).resolve(), self.root))
        self.commits = runs(self.repository, self.config)
        elsewhere = [cache_folder() / "objects"]
        if self.config.objects is not None:
            elsewhere.insert(0, self.root / self.config.objects)
        self.goldens = Goldens(self.root / self.config.golden, elsewhere)
        self.references = References(self.repository, self.goldens, self.config.reference_branch, self.config.missing)

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *_: object) -> None:
        self.commits.close()
        self.repository.close()


def compare_runs(reference: Run, candidate: Run) -> dict[str, Any]:
    """The verdict object about two runs; ``untestable`` where one of them did not come to its end.

    A run that broke off is still compared as far as it came: a difference before that is a difference.
    """
    if not _has_trace(reference):
        return untestable("reference", reference)
    trace = read_trace(reference.trace)
    if not reference.testable and not (_has_trace(candidate) and _differ_before_the_end(trace, candidate)):
        return untestable("reference", reference)
    document = compare_with(trace, candidate)
    _add_notes(document, "reference", reference)
    return document


def compare_with(reference: Trace, candidate: Run) -> dict[str, Any]:
    """The verdict object about a run, against a trace."""
    if not _has_trace(candidate):
        return untestable("candidate", candidate)
    if not candidate.testable and not _differ_before_the_end(reference, candidate):
        return untestable("candidate", candidate)
    document = compare_traces(reference, read_trace(candidate.trace)).to_json()
    _add_notes(document, "candidate", candidate)
    return document


def _add_notes(document: dict[str, Any], side: str, run: Run) -> None:
    """Add what a run said about itself, unless its trace says so too."""
    said = set(document["notes"])
    document["notes"] += [
        f"{side}: {note}" for note in run.result.outcome.get("notes", ()) if not said & {note, f"{side}: {note}"}
    ]


def at_level_of(job: Job, reference: Trace) -> Job:
    """The job with level ``auto`` settled: as a reference was recorded."""
    level = reference.manifest.get("level")
    return replace(job, level=str(level)) if job.level == "auto" and level in LEVELS else job


def at_level_of_run(job: Job, reference: Run) -> Job:
    """The same, for a reference that was run and perhaps left no trace."""
    return at_level_of(job, read_trace(reference.trace)) if _has_trace(reference) else job


def _has_trace(run: Run) -> bool:
    return (run.trace / "manifest.json").exists()


def _differ_before_the_end(reference: Trace, candidate: Run) -> bool:
    """Whether a step differs that both sides brought to its end; a run that broke off has not ended its last one."""
    ended = []
    for manifest in (reference.manifest, read_trace(candidate.trace).manifest):
        steps = manifest["steps"] if manifest["complete"] else manifest["steps"][:-1]
        ended.append({entry["step"]: entry["digests"].get("contract") for entry in steps})
    return any(ended[1].get(step, digest) != digest for step, digest in ended[0].items())


def run_path(run: Run) -> str:
    """The trace of a run, as text."""
    return str(run.trace)


def untestable(side: str, run: Run) -> dict[str, Any]:
    """The verdict object for a run that could not be made."""
    outcome = run.result.outcome
    document = nothing_compared("untestable", f"{side}: {run.reason}", *outcome.get("notes", ()))
    document[side]["commit"] = run.commit
    document["coverage"] = outcome.get("coverage", {})
    document["error"] = {
        "side": side,
        "slug": outcome.get("slug", "untestable"),
        "message": outcome.get("message", ""),
        "traceback": outcome.get("traceback", ""),
    }
    return document


def check(project: Project, job: Job, wanted: Wanted, *, repro: Path | None = None) -> Checked:
    """Compare a target, as the working tree has it, with the reference that counts (DESIGN 8).

    ``repro``: a folder that takes a reproducer of a divergence, below the recipe's id.

    Raises:
        UsageError: The revision names no commit, a golden is damaged, the clone is too shallow, the target is none.

    """
    recipe = recipe_id(job.target, job.cwd, str(project.root))
    key = project.commits.environment_key(project.commits.server(job), project.commits.places.ranks(job))
    chosen = project.references.choose(recipe, key, wanted)
    try:
        document = _against(project, job, chosen)
    except IncomparableError as error:
        if chosen.kind != "golden":
            raise
        unusable = f"The golden of this environment does not count: {error.message}"
        chosen = project.references.choose(recipe, key, wanted, unusable=unusable)
        document = _against(project, job, chosen)
    if document["verdict"] == "diverged":
        zoom_check(project, job, chosen, document, None if repro is None else repro / recipe)
    target = relative_target(job.target, job.cwd, str(project.root))
    file = project.commits.places.file(job)
    facts = {"file": file and os.path.relpath(file, project.root), "profile": project.commits.places.profile(job)}
    if (job.from_step, job.to_step) != (None, None):
        document["window"] = {"from": job.from_step, "to": job.to_step}
    return Checked(job.target, {"recipe": recipe, "target": target, **document, **facts, "environment": key})


def _against(project: Project, job: Job, chosen: Reference) -> dict[str, Any]:
    if chosen.kind == "none":
        document = nothing_compared("no-reference", chosen.why)
        return {**document, "reference": {**document["reference"], "kind": None}, "missing": chosen.missing}
    if chosen.golden is not None:
        job = at_level_of(job, chosen.golden.trace)
        candidate = project.commits.here(job)
        document = _against_golden(project, job, chosen.golden, candidate)
    else:
        assert chosen.commit is not None
        reference = project.commits.at(job, chosen.commit)
        job = at_level_of_run(job, reference)
        candidate = project.commits.here(job)
        document = compare_runs(reference, candidate)
        if reference.cached and document["verdict"] == "diverged":
            reference = _measured_now(project, job, reference)
            document = compare_runs(reference, candidate)
        facts = {"kind": "commit", "commit": chosen.commit, "cached": reference.cached, "trace": run_path(reference)}
        document["reference"] = {**document["reference"], **facts}
        if chosen.instead_of is not None and reference.testable and candidate.testable:
            _attribute(chosen.instead_of, reference, candidate, document)
    document["candidate"]["trace"] = run_path(candidate)
    if chosen.why:
        document["notes"] = [chosen.why, *document["notes"]]
    if document["verdict"] == "diverged" or (document["verdict"] == "environment" and "attribution" in document):
        _look_closer(project, job, candidate, document)
    return document


def _measured_now(project: Project, job: Job, kept: Run) -> Run:
    """A run from before, made again: it may have read what no key knows, such as a data file that changed since."""
    before = read_trace(kept.trace).manifest  # the new run takes its place in the cache
    now = project.commits.at(job, str(kept.commit), fresh=True)
    is_same = now.testable and numerics_digest(before) == numerics_digest(read_trace(now.trace).manifest)
    return replace(now, cached=is_same)


def _from_here(path: Path) -> str:
    """A path as the user would name it: relative to the working folder if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _against_golden(project: Project, job: Job, golden: Golden, candidate: Run) -> dict[str, Any]:
    """The verdict object about a run, against a golden.

    Where they differ, or the golden's events are not here, the golden's commit is run, too: only what the code changed
    since is the candidate's divergence.
    """
    document, again = _recorded(golden, candidate), None
    if document is None or document["verdict"] == "diverged":
        document, again = _told_apart(project, job, golden, candidate, document)
    manifest, latest = golden.trace.manifest, golden.latest
    path = _from_here(golden.path)
    trace = path if again is None else run_path(again)
    facts = {"kind": "golden", "commit": latest.commit, "environment": golden.key, "path": path,
             "who": latest.who, "when": latest.when, "why": latest.why, "trace": trace}  # fmt: skip
    document["reference"] = {**document["reference"], **facts}
    if manifest["argv"] != list(job.argv):
        argv = f"The golden was recorded with the arguments {manifest['argv']}, this run has {list(job.argv)}."
        document["notes"] = [argv, *document["notes"]]
    return document


def _recorded(golden: Golden, candidate: Run) -> dict[str, Any] | None:
    """The verdict object from what the golden holds; None where its events would be needed and are not here."""
    try:
        return compare_with(golden.trace, candidate)
    except UsageError as error:
        if error.slug != "events-missing":
            raise
    return None


def _told_apart(
    project: Project, job: Job, golden: Golden, candidate: Run, recorded: dict[str, Any] | None
) -> tuple[dict[str, Any], Run | None]:
    """The verdict object with the golden's commit run here, and that run if it took the golden's place."""
    commit = project.references.commit_of(golden)
    again = None if commit is None else project.commits.at(job, commit, fresh=True)
    if again is None or not again.testable or not candidate.testable:
        document = recorded or _by_digest(golden, candidate)
        if candidate.testable:
            why = "is gone" if again is None else f"cannot be run here ({again.reason})"
            document["notes"].append(f"The golden's commit {why}, so environment and code are not told apart.")
        return document, None
    if recorded is None and _same_numerics(golden, candidate) and not _same_numerics(golden, again):
        return _by_digest(golden, candidate), None
    code = compare_runs(again, candidate)
    parts = _attribute(golden, again, candidate, code if recorded is None else recorded)
    if parts is None or parts["environment"]["verdict"] != "diverged":
        if recorded is not None:
            return recorded, None
        code["notes"].append(
            "The golden's events are not on this machine: its commit was run again to find the operator."
        )
        return code, again
    code["attribution"] = parts
    if code["verdict"] in PASSING:
        code.update(verdict="environment", contract=parts["environment"]["contract"])
        code["notes"].append(
            "The golden's commit does not compute here what the golden holds, but what the working tree computes: the "
            "environment changed, the code did not."
        )
    return code, again


def _attribute(golden: Golden, again: Run, candidate: Run, document: dict[str, Any]) -> dict[str, Any] | None:
    """Add to a verdict object what the environment and the code have changed since the golden, if that can be told."""
    traces = [read_trace(run.trace) for run in (again, candidate)]
    why = why_not(golden.trace, traces[0])
    if not why:
        try:
            document["attribution"] = attribute(golden.trace, *traces)
            return dict(document["attribution"])
        except IncomparableError as error:
            why = error.message
    document["notes"].append(f"Environment and code are not told apart: {why}")
    return None


def _same_numerics(golden: Golden, run: Run) -> bool:
    return numerics_digest(golden.trace.manifest) == numerics_digest(read_trace(run.trace).manifest)


def _by_digest(golden: Golden, candidate: Run) -> dict[str, Any]:
    """The verdict that the digests alone allow."""
    if not candidate.testable:
        return untestable("candidate", candidate)
    note = "The golden's events are not on this machine."
    if _same_numerics(golden, candidate):
        return nothing_compared("equivalent", f"{note} Every contract value is equal.")
    same_key = golden.key == read_trace(candidate.trace).manifest["environment"]["key"]
    return nothing_compared("diverged" if same_key else "environment", f"{note} Some contract values differ.")


def _look_closer(project: Project, job: Job, candidate: Run, document: dict[str, Any]) -> None:
    """Tell a target that changed from one that does not repeat itself, and name the commits that declare a change."""
    again = project.commits.here(job, instance=1)
    if again.testable:
        repeated = compare_runs(candidate, again)
        if repeated["verdict"] == "diverged":
            document.update(verdict="unstable", first_divergence=repeated["first_divergence"])
            document.pop("attribution", None)
            document["notes"].append(
                "The working tree does not repeat itself from one process to the next, so nothing follows from a "
                "difference to the reference; the divergence shown is that between its own two runs."
            )
            return
    declared = _declared(project, job, str(document["reference"]["commit"]))
    if declared:
        document["declared"] = declared
        named = ", ".join(commit[:12] for commit in declared)
        document["notes"].append(f"A change of this recipe's numerics is declared by {named}.")


def _declared(project: Project, job: Job, since: str) -> list[str]:
    """The commits since the reference whose message says that they change this recipe's numbers."""
    recipe = recipe_id(job.target, job.cwd, str(project.root))
    try:
        commits = commits_between(project.repository, since, project.repository.head())
    except UsageError:
        return []  # a golden's commit may be gone
    return [commit.hash for commit in commits if recipe in commit.rebaselines]
