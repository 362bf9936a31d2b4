"""Real git repositories for tests: fixed names and dates, no configuration of the machine, and a way to see changes."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path


class GitRepo:
    """A repository in a folder; every commit has the same author and a date one minute after the one before."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.dir = folder
        self.clock = 1_700_000_000
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main", *options)

    def environment(self) -> dict[str, str]:
        stamp = f"{self.clock} +0000"
        names = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
                 for what, value in (("NAME", "Case"), ("EMAIL", "case@example.invalid"), ("DATE", stamp))}  # fmt: skip
        return {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **names}

    def git(self, *arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.dir, env=self.environment(), input=stdin, capture_output=True, check=False
        )
        assert done.returncode == 0, f"git {arguments}: {done.stderr.decode()}"
        return os.fsdecode(done.stdout).strip()

    def put(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        full = self.dir / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content.encode() if isinstance(content, str) else content)
        full.chmod(mode)

    def commit(self, subject: str = "a commit", **files: str) -> str:
        for name, content in files.items():
            self.put(name + ".py", content)
        self.clock += 60
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def tree_of(self, *records: tuple[str, str, bytes, bytes], message: str = "made by hand") -> str:
        """A commit of a tree with entries (mode, kind, name, content or hash) that git itself might refuse to make."""
        raw = b""
        for mode, kind, name, content in records:
            is_blob = kind == "blob"
            id_ = self.git("hash-object", "-w", "--stdin", stdin=content) if is_blob else content.decode()
            raw += mode.encode() + b" " + name + b"\0" + bytes.fromhex(id_)
        tree = self.git("hash-object", "-w", "-t", "tree", "--stdin", "--literally", stdin=raw)
        return self.git("commit-tree", tree, "-m", message)


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file below a folder: content, mode and time of change, so that any touch shows."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            full = Path(place, name)
            status = full.lstat()
            data = b""
            if full.is_symlink():
                data = os.fsencode(full.readlink())
            elif full.is_file():
                data = full.read_bytes()
            found[str(full.relative_to(folder))] = (
                f"{status.st_mode:o} {status.st_mtime_ns} {hashlib.sha256(data).hexdigest()}"
            )
    return found
