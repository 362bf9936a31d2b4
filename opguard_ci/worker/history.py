"""The commit graph of a repository: what lies between two commits, who descends from whom, what a commit says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opguard_ci.errors import UsageError
from opguard_ci.worker.git import Repository

REBASELINE = "Opguard-Rebaseline"
FIELDS = "%T%x00%P%x00%at%x00%s%x00%(trailers:key=" + REBASELINE + ",valueonly,unfold,separator=%x1f)"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as a search and a report need it.

    ``author_date`` is in seconds since 1970; ``rebaselines`` are the values of its ``Opguard-Rebaseline`` trailers.
    """

    hash: str
    tree: str
    parents: tuple[str, ...]
    author_date: int
    subject: str
    rebaselines: tuple[str, ...]


def describe(repository: Repository, commits: Sequence[str]) -> list[Commit]:
    """What these commits (full hashes) say, in the order given."""
    if not commits:
        return []
    feed = "\n".join(commits).encode() + b"\n"
    answer = repository.command("rev-list", "--no-walk=unsorted", f"--format={FIELDS}", "--stdin", stdin=feed)
    if answer.status:
        raise UsageError("unknown-commit", f"A commit cannot be read in {repository.root}: {answer.reason}.")
    found = {commit.hash: commit for commit in _parse(answer.output)}
    return [found[commit] for commit in commits]


def commits_between(repository: Repository, good: str, bad: str) -> list[Commit]:
    """The commits that ``bad`` has and ``good`` has not (full hashes), parents before children.

    A commit's parents may lie outside of the list. Raises UsageError: shallow-clone when the history is cut inside.
    """
    out = repository.require("rev-list", "--topo-order", "--reverse", f"--format={FIELDS}", bad, f"^{good}", "--")
    commits = list(_parse(out))
    cut = _cut_off(repository)
    if any(commit.hash in cut for commit in commits):
        raise repository.shallow_error(f"its history ends between {good[:12]} and {bad[:12]}")
    return commits


def first_parents(repository: Repository, good: str, bad: str) -> list[str]:
    """The hashes from ``bad`` along first parents that ``good`` has not, oldest first."""
    out = repository.require("rev-list", "--first-parent", "--reverse", bad, f"^{good}", "--")
    return out.decode().split()


def is_ancestor(repository: Repository, older: str, newer: str) -> bool:
    """Whether ``newer`` contains ``older``; a commit contains itself. UsageError shallow-clone when that is hidden."""
    answer = repository.command("merge-base", "--is-ancestor", older, newer)
    if answer.status == 0:
        return True
    if answer.status != 1:
        raise UsageError("unknown-commit", f"{older} and {newer} cannot be compared: {answer.reason}.")
    if repository.is_shallow:
        raise repository.shallow_error(f"whether {newer[:12]} descends from {older[:12]} is not to be seen")
    return False


def merge_base(repository: Repository, one: str, other: str) -> str | None:
    """The best common ancestor, None when there is none."""
    if repository.is_shallow:
        for older, newer in ((one, other), (other, one)):
            if repository.command("merge-base", "--is-ancestor", older, newer).status == 0:
                return older
        raise repository.shallow_error(f"the common ancestor of {one[:12]} and {other[:12]} may be cut off")
    answer = repository.command("merge-base", one, other)
    if answer.status > 1:
        raise UsageError("unknown-commit", f"{one} and {other} have no readable history: {answer.reason}.")
    return answer.output.decode().strip() or None


def changed_paths(repository: Repository, commit: str, parent: str | None = None) -> list[bytes]:
    """The paths whose content, mode or presence differs from ``parent`` (default: the first; a root: everything)."""
    if parent is None:
        parents = describe(repository, [commit])[0].parents
        parent = parents[0] if parents else None
    ends = [parent, commit] if parent else ["--root", commit]
    out = repository.require("diff-tree", "-r", "-z", "--name-only", "--no-commit-id", "--no-renames",
                             "--no-ext-diff", "--no-textconv", "--no-color", *ends, "--")  # fmt: skip
    return [path for path in out.split(b"\0") if path]


def _cut_off(repository: Repository) -> frozenset[str]:
    if not repository.is_shallow:
        return frozenset()
    return frozenset((repository.common_dir / "shallow").read_text().split())


def _parse(output: bytes) -> list[Commit]:
    """``rev-list --format`` prints ``commit HASH`` and then the format's one line."""
    lines = output.decode(errors="replace").split("\n")
    commits = []
    for header, line in zip(lines[::2], lines[1::2], strict=False):
        tree, parents, date, subject, trailers = line.split("\0")
        declared = tuple(value.strip() for value in trailers.split("\x1f") if value.strip())
        commits.append(
            Commit(header.removeprefix("commit "), tree, tuple(parents.split()), int(date), subject, declared)
        )
    return commits
