"""The demo's git history: refactorings, a commit that cannot be imported, a merge, and one change of the numbers."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from opguard_ci.demo.changes import FAULTS, REFACTORS, Change, project
from opguard_ci.errors import UsageError

_MODEL: Final = "smallgpt/model.py"
_BRANCH: Final = "notes"
_WHO: Final = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Opguard Demo"), ("EMAIL", "demo@example.invalid"))
}


@dataclass(frozen=True, slots=True)
class History:
    """A repository that was made: its first and last commit, and the commit with the planted change."""

    folder: Path
    first: str
    last: str
    planted: str
    change: Change
    num_commits: int


def build(folder: Path, seed: int) -> History:
    """Make a repository in an empty folder; ``seed`` picks the change, its variant and its place.

    Seeds 0, 1, 2, … go through all kinds of fault in turn. Raises ``UsageError`` if git is missing or refuses.
    """
    return _Builder(folder, seed).run()


@dataclass(slots=True)
class _Builder:
    folder: Path
    seed: int
    files: dict[str, str] = field(default_factory=project)
    clock: int = 1_700_000_000
    num_commits: int = 0

    def run(self) -> History:
        chance = random.Random(self.seed)
        change = FAULTS[self.seed % len(FAULTS)]
        self._git("init", "-q", "-b", "main")
        self._git("config", "commit.gpgsign", "false")
        first = self._commit("A small language model and its training script")
        edits = [self._note, self._broken, *(self._refactoring(refactor) for refactor in REFACTORS), self._merge]
        chance.shuffle(edits)
        place = chance.randrange(1, len(edits))
        planted = ""
        for number, edit in enumerate(edits):
            if number == place:
                planted = self._plant(change, chance)
            edit()
            self._note()
        return History(self.folder, first, self._git("rev-parse", "HEAD"), planted, change, self.num_commits)

    def _plant(self, change: Change, chance: random.Random) -> str:
        self._apply(change, chance.choice(change.new))
        return self._commit(f"Tidy {Path(change.file).stem}")

    def _apply(self, change: Change, new: str) -> None:
        assert change.old in self.files[change.file], change
        self.files[change.file] = self.files[change.file].replace(change.old, new)

    def _refactoring(self, refactor: Change) -> Callable[[], None]:
        def edit() -> None:
            if refactor.old not in self.files[refactor.file]:  # the planted change stands in the same line
                return
            self._apply(refactor, refactor.new[0])
            self._commit(f"Refactor: {refactor.kind.replace('-', ' ')}")

        return edit

    def _note(self) -> None:
        text = self.files.get("NOTES.md", "# Notes\n")
        self.files["NOTES.md"] = f"{text}\n- note {text.count('- note') + 1}\n"
        self._commit("Write a note")

    def _broken(self) -> None:
        whole = self.files[_MODEL]
        self.files[_MODEL] = whole.replace("import torch\n", "import torhc\n", 1)
        self._commit("Sort imports")
        self.files[_MODEL] = whole
        self._commit("Mend the import")

    def _merge(self) -> None:
        self._git("checkout", "-q", "-b", _BRANCH)
        kept = dict(self.files)
        self.files["DESIGN.md"] = "# Design\n\nTwo blocks, eight heads.\n"
        self._commit("Write down the design")
        self._git("checkout", "-q", "main")
        self.files = kept
        self._note()
        self.files["DESIGN.md"] = "# Design\n\nTwo blocks, eight heads.\n"
        self._git("merge", "-q", "--no-ff", "-m", f"Merge branch '{_BRANCH}'", _BRANCH)
        self.num_commits += 1

    def _commit(self, subject: str) -> str:
        for name, text in self.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self._git("add", "-A")
        self._git("commit", "-q", "-m", subject)
        self.num_commits += 1
        return self._git("rev-parse", "HEAD")

    def _git(self, *arguments: str) -> str:
        self.clock += 60
        stamp = f"{self.clock} +0000"
        environment = {
            **os.environ,
            **_WHO,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_DATE": stamp,
            "GIT_COMMITTER_DATE": stamp,
        }
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, check=True
            )
        except FileNotFoundError as error:
            raise UsageError("git-missing", "The demo needs git; install it first.") from error
        except subprocess.CalledProcessError as error:
            raise UsageError(
                "git-failed", f"git {arguments[0]} failed in {self.folder}: {error.stderr.strip()}"
            ) from error
        return done.stdout.strip()
