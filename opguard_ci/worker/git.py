"""The one facade on git: opens a repository, names its commits and reads its objects, and writes nothing into it.

Every command runs through GitPython with optional locks, hooks, file-system monitors, automatic maintenance, prompts,
pagers and replace refs switched off. Objects come from one ``git cat-file --batch``, which `Repository.close` ends. A
partial clone's missing objects are fetched into the cache folder, never into the user's ``.git``.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_ci.errors import UsageError
from opguard_ci.worker import partial
from opguard_ci.worker.cache import cache_folder
from opguard_ci.worker.objects import BATCH, Entry, ObjectReader, UnreadableObjectError, parse_tree
from opguard_ci.worker.submodules import Submodules

if TYPE_CHECKING:
    from types import TracebackType

# A hook runs with these set for *its* repository; they would silently redirect commands meant for another folder.
LOCAL_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE",
                   "GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT", "GIT_EXTERNAL_DIFF", "GIT_GRAFT_FILE",
                   "GIT_SHALLOW_FILE", "GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS")  # fmt: skip
ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1"}
QUIET = ("--no-pager", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "gc.auto=0",
         "-c", "maintenance.auto=false", "-c", "submodule.recurse=false", "-c", "log.showSignature=false")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What a git command gave back."""

    status: int
    output: bytes
    error: str

    @property
    def reason(self) -> str:
        """The last line of git's own message, without its prefix."""
        lines = [line for line in self.error.splitlines() if line.strip()]
        return lines[-1].removeprefix("fatal: ").removeprefix("error: ") if lines else f"exit status {self.status}"


class Repository:
    """A git repository with a working tree, read and never written.

    Use it as a context manager, or call `close`: it keeps one ``git cat-file`` process. Safe for several threads.
    """

    def __init__(self, path: str | os.PathLike[str], *, cache: Path | None = None) -> None:
        """Find the repository that holds ``path``; ``cache`` takes what a partial clone lacks.

        Raises UsageError: git-missing, not-a-repository, bare-repository.
        """
        folder = Path(path).absolute()
        if not folder.is_dir():
            raise UsageError("not-a-repository", f"{folder} is not a folder; name the folder of a git checkout.")
        self._git = _command_runner(folder)
        found = self.command("rev-parse", "--is-bare-repository", "--is-shallow-repository", "--show-object-format",
                             "--absolute-git-dir", "--git-common-dir")  # fmt: skip
        if found.status:
            raise UsageError(
                "not-a-repository",
                f"{folder} is not inside a usable git repository ({found.reason.rstrip('.')}); change into a checkout.",
            )
        bare, shallow, self.object_format, git_dir, common = os.fsdecode(found.output).split("\n")[:5]
        if bare == "true":
            raise UsageError(
                "bare-repository", f"{folder} is a bare repository; run opguard in a checkout with a working tree."
            )
        top = self.command("rev-parse", "--show-toplevel")
        if top.status:
            raise UsageError(
                "not-a-repository", f"{folder} is not inside a working tree ({top.reason}); change into a checkout."
            )
        self.root = Path(os.fsdecode(top.output.removesuffix(b"\n")))
        self.git_dir = Path(git_dir)
        self.common_dir = Path(os.path.normpath(folder / common))
        self.is_shallow = shallow == "true"
        self._git = _command_runner(self.root)
        self._filters: tuple[str, ...] | None = None
        self._lock = threading.Lock()
        self._reader: ObjectReader | None = None
        self._trees: dict[str, tuple[Entry, ...]] = {}
        self.submodules = Submodules(self, cache)
        self.promisor = partial.promisor(self)
        if self.promisor:
            store = (cache if cache is not None else cache_folder()) / "objects" / self.identity
            self._git.update_environment(GIT_OBJECT_DIRECTORY=str(partial.object_store(self, store)))

    def __enter__(self) -> Repository:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the object reader; the repository may be used again afterwards and then starts another one."""
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
        self.submodules.close()

    @property
    def identity(self) -> str:
        """A short name for this repository in cache folders: all its worktrees share it."""
        return hashlib.sha256(os.fsencode(self.common_dir)).hexdigest()[:16]

    def command(self, *arguments: str, stdin: bytes | None = None, config: Sequence[str] = ()) -> Answer:
        """Run ``git ARGUMENTS`` with everything that could write, prompt or run foreign programs switched off."""
        line = self._line(*config, *arguments)
        with tempfile.TemporaryFile() as feed:
            if stdin is not None:
                feed.write(stdin)
                feed.seek(0)
            status, output, error = self._git.execute(
                line, istream=feed, with_extended_output=True, with_exceptions=False, stdout_as_string=False,
                strip_newline_in_stdout=False,
            )  # fmt: skip
        text = error.decode(errors="replace") if isinstance(error, bytes) else error
        return Answer(status, output, text)

    def _line(self, *arguments: str) -> list[str]:
        stale = [part for name in LOCAL_VARIABLES if name in os.environ for part in ("-u", name)]
        return [*(["env", *stale] if stale else ()), self._git.GIT_PYTHON_GIT_EXECUTABLE, *QUIET, *arguments]

    def require(self, *arguments: str) -> bytes:
        """The output of a command that only fails when the repository is damaged (UsageError: git-failed)."""
        answer = self.command(*arguments)
        if answer.status:
            raise UsageError(
                "git-failed", f"git {arguments[0]} failed in {self.root}: {answer.reason}; `git fsck` may say more."
            )
        return answer.output

    def head(self) -> str:
        """The full hash that HEAD stands on, detached or not (UsageError: unborn-head)."""
        return self.resolve("HEAD")

    def branch(self) -> str | None:
        """The branch that HEAD names, None when it is detached."""
        answer = self.command("symbolic-ref", "--quiet", "--short", "HEAD")
        return os.fsdecode(answer.output.strip()) if answer.status == 0 else None

    def resolve(self, revision: str) -> str:
        """The full hash of the commit that ``revision`` names.

        Raises UsageError: unknown-commit, ambiguous-commit, shallow-clone, unborn-head.
        """
        if not revision or revision.startswith("-") or "\0" in revision:
            raise UsageError("unknown-commit", f"{revision!r} does not name a commit.")
        answer = self.command("rev-parse", "--verify", f"{revision}^{{commit}}")
        if answer.status == 0:
            return answer.output.decode().strip()
        if "is ambiguous" in answer.error:
            raise UsageError(
                "ambiguous-commit", f"{revision!r} is the beginning of several objects' names; give more digits."
            )
        if self.is_shallow:
            raise self.shallow_error(f"{revision!r} is not in it")
        if self.command("rev-parse", "--verify", "--quiet", "HEAD").status:
            raise UsageError("unborn-head", f"{self.root} has no commit yet on this branch; make one first.")
        raise UsageError(
            "unknown-commit", f"{revision!r} does not name a commit of {self.root}; fetch it or check the spelling."
        )

    def shallow_error(self, what: str) -> UsageError:
        """The error for history that a shallow clone cut off."""
        return UsageError(
            "shallow-clone",
            f"{self.root} is a shallow clone and {what}; run `git fetch --unshallow`,"
            " or check out with `fetch-depth: 0`.",
        )

    def tree(self, commit: str) -> str:
        """The hash of a commit's tree (``commit``: any full hash of a commit)."""
        kind, data = self.read(commit)
        if kind != "commit" or not data.startswith(b"tree "):
            raise UsageError("unknown-commit", f"{commit} is a {kind}, not a commit.")
        return data[5 : data.index(b"\n")].decode()

    def entries(self, commit: str) -> list[Entry]:
        """Every leaf of a commit's tree, in git's order; subtrees that were read before are not read again."""
        done: list[Entry] = []
        stack = [Entry(0o040000, "tree", self.tree(commit), b"")]
        while stack:
            entry = stack.pop()
            if entry.kind != "tree":
                done.append(entry)
                continue
            prefix = entry.path + b"/" if entry.path else b""
            stack.extend(
                Entry(mode, kind, id_, prefix + name) for mode, kind, id_, name in reversed(self._subtree(entry.id))
            )
        return done

    def tree_hash(self, commit: str, paths: Sequence[str] = ()) -> str:
        """A digest of the tracked files that matter.

        Args:
            commit: a full hash.
            paths: files, folders or ``fnmatch`` patterns below the root (``*`` crosses ``/``); none: the whole tree,
                and the digest is then the tree's own hash, unless submodules are here too.

        """
        laid_out = self.submodules.laid_out(self.entries(commit)) if self.submodules.clones else []
        if not paths:
            tree = self.tree(commit)
            return hashlib.sha256(" ".join([tree, *laid_out]).encode()).hexdigest() if laid_out else tree
        wanted = [os.path.normpath(path) for path in paths]
        digest = hashlib.sha256()
        for entry in self.entries(commit):
            name = os.fsdecode(entry.path)
            if any(w == "." or name == w or name.startswith(w + "/") or fnmatchcase(name, w) for w in wanted):
                digest.update(b"%o %s %s\0" % (entry.mode, entry.id.encode(), entry.path))
                digest.update(b"laid out\0" if entry.id in laid_out else b"")
        return digest.hexdigest()

    def blob(self, id_: str) -> bytes:
        """The bytes of one blob, as git stores them: no line-ending conversion, no filter."""
        return self.read(id_)[1]

    def blobs(self, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The bytes of many blobs; missing ones of a partial clone are fetched in one go beforehand."""
        wanted = list(ids)
        owners = self.submodules.owners(wanted)
        for clone in dict.fromkeys(owners.values()):
            yield from clone.blobs(id_ for id_ in wanted if owners.get(id_) is clone)
        wanted = [id_ for id_ in wanted if id_ not in owners]
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            yield from ((id_, data) for id_, (_, data) in zip(part, self._read_many(part), strict=True))

    def read(self, id_: str) -> tuple[str, bytes]:
        """Kind and bytes of one object (UsageError: missing-object)."""
        return self._read_many([id_])[0]

    def dirty(self) -> list[bytes]:
        """Paths that differ from HEAD in the index or the working tree, and untracked ones that are not ignored.

        The index is neither refreshed nor locked and no clean filter runs, so a file under a filter (LFS) whose time
        stamp moved counts as changed. What is inside submodules is not looked at, only where they stand.
        """
        out = self.command("status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=dirty",
                           "--no-renames", config=self._without_filters())  # fmt: skip
        if out.status:
            raise UsageError("git-failed", f"git status failed in {self.root}: {out.reason}.")
        return [record[3:] for record in out.output.split(b"\0") if record]

    def is_clean(self) -> bool:
        """Whether `dirty` finds nothing."""
        return not self.dirty()

    def prefetch(self, commits: Sequence[str]) -> int:
        """Fetch in few batches whatever these commits' trees lack in a partial clone; returns how many objects.

        They go into the cache folder. A complete clone costs nothing. Raises UsageError: missing-object.
        """
        if not self.promisor or not commits:
            return 0
        fetched = partial.fetch_missing(self, self.promisor, commits)
        if fetched:
            self.close()  # a reader that already runs does not look for new packs of an object it has missed
        return fetched

    def _subtree(self, id_: str) -> tuple[Entry, ...]:
        known = self._trees.get(id_)
        if known is None:
            kind, data = self.read(id_)
            if kind != "tree":
                raise UsageError("missing-object", f"{id_} should be a tree and is a {kind}; run `git fsck`.")
            known = self._trees[id_] = tuple(parse_tree(data, 32 if self.object_format == "sha256" else 20))
        return known

    def _read_many(self, ids: Sequence[str]) -> list[tuple[str, bytes]]:
        with self._lock:
            if self._reader is None:
                self._reader = ObjectReader(self._git, self._line("cat-file", "--batch"))
            try:
                return self._reader.read(ids)
            except UnreadableObjectError as error:
                self._reader = None
                raise self.missing_error(error.id, error.why) from error

    def missing_error(self, id_: str, why: str) -> UsageError:
        """The error for an object that should be there, with what to do about it."""
        cure = f"it is a partial clone of {self.promisor}: check that it can be reached" if self.promisor else (
            "run `git fsck`, then `git fetch` or clone again")  # fmt: skip
        return UsageError("missing-object", f"Object {id_} of {self.root} cannot be read ({why}); {cure}.")

    def _without_filters(self) -> tuple[str, ...]:
        if self._filters is None:
            listed = self.command("config", "-z", "--name-only", "--get-regexp", r"^filter\..*\.(clean|process)$")
            keys = [os.fsdecode(key) for key in listed.output.split(b"\0") if key]
            self._filters = tuple(
                part for key in keys for part in ("-c", f"{key}=", "-c", f"{key.rpartition('.')[0]}.required=false")
            )
        return self._filters


def _command_runner(folder: Path) -> Any:
    """GitPython's command object for a folder; imported here because it takes 90 ms and needs a git program."""
    try:
        import git
    except ImportError as error:
        raise UsageError(
            "git-missing", "git is needed and was not found; install git 2.31 or newer, or put it on PATH."
        ) from error
    runner = git.Git(os.fspath(folder))
    runner.update_environment(**ENVIRONMENT)
    return runner
