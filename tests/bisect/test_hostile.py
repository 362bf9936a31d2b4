"""Commits that misbehave: each is skipped with its reason, and nothing is left running or changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.bisect.driver import BisectOptions, bisect
from opguard_ci.guard import Project
from opguard_ci.worker.places import Job
from tests.bisect.test_driver import CHANGED, RECIPE, STEADY
from tests.gitrepo import GitRepo, fingerprint

pytestmark = pytest.mark.usefixtures("own_cache")

HANGS = "import time\ndef scale():\n    time.sleep(600)\n"
CRASHES = "import ctypes\ndef scale():\n    ctypes.string_at(0)\n"
EXITS = "import os\ndef scale():\n    os._exit(0)\n"
ASKS = "def scale():\n    return float(input())\n"
DAEMON = """
import os, time
def scale():
    if not os.path.exists({mark!r}) and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open({mark!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    return 2.0
"""
WRITES = "from pathlib import Path\ndef scale():\n    Path({path!r}).write_text('mine')\n    return 2.0\n"


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    made = GitRepo(tmp_path / "a project with ünusual näme")
    made.commit("first", recipe=RECIPE, net=STEADY)
    return made


def search(repo: GitRepo, good: str, bad: str, **options: Any) -> dict[str, Any]:
    with Project(repo.dir) as project:
        job = Job("recipe.py:train", str(repo.dir), **options)
        return bisect(project, job, good, bad, BisectOptions())


@pytest.mark.parametrize(
    ("net", "reason"),
    [(HANGS, "timeout"), (CRASHES, "crashed"), (EXITS, "crashed"), (ASKS, "EOF")],
    ids=["hangs", "crashes", "exits", "asks"],
)
def test_a_commit_that_does_not_end_well_is_skipped(repo: GitRepo, net: str, reason: str) -> None:
    """The search goes on around it; the reason is told in a sentence."""
    good = repo.git("rev-parse", "HEAD")
    repo.commit("misbehaves", net=net)
    mended = repo.commit("mended", net=STEADY)
    changed = repo.commit("changed", net=CHANGED)
    found = search(repo, good, changed, timeout=5.0 if net == HANGS else None)
    assert found["first_bad"] == changed, found
    assert mended not in [entry["commit"] for entry in found["skipped"]]
    assert all(reason in entry["reason"] for entry in found["skipped"])


def test_a_daemon_that_a_commit_leaves_behind_is_ended(repo: GitRepo, tmp_path: Path) -> None:
    """Whatever a commit starts is gone when its run is."""
    mark = tmp_path / "daemon"
    good = repo.git("rev-parse", "HEAD")
    repo.commit("leaves a daemon", net=DAEMON.format(mark=str(mark)))
    changed = repo.commit("changed", net=CHANGED)
    assert search(repo, good, changed)["first_bad"] == changed
    if mark.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)


def test_a_commit_cannot_write_into_the_checkout(repo: GitRepo) -> None:
    """A run that opens a file of the user's checkout for writing gets an error, and the file stays as it was."""
    good = repo.git("rev-parse", "HEAD")
    target = repo.dir / "net.py"
    repo.commit("writes", net=WRITES.format(path=str(target)))
    changed = repo.commit("changed", net=CHANGED)
    before = fingerprint(repo.dir)
    found = search(repo, good, changed)
    assert found["verdict"] in ("found", "candidates")
    assert changed in found["candidates"]
    assert fingerprint(repo.dir) == before


def test_odd_names_links_and_attributes_do_no_harm(repo: GitRepo) -> None:
    """Non-ASCII paths, a link out of the tree, a submodule, an LFS pointer, CRLF and export attributes."""
    good = repo.git("rev-parse", "HEAD")
    repo.put("dätä/ein name.txt", "x\r\ny\r\n")
    repo.put(".gitattributes", "* text=auto eol=crlf\nnet.py export-ignore\nrecipe.py export-subst\n")
    repo.put("weights.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    (repo.dir / "outside").symlink_to("/etc/hostname")
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{good},vendored")
    repo.commit("odd\x1b[31m things \u202e")
    changed = repo.commit("changed", net=CHANGED)
    assert search(repo, good, changed)["first_bad"] == changed


def test_the_checkout_is_untouched_when_the_search_is_killed(repo: GitRepo, tmp_path: Path) -> None:
    """Kill -9 at any moment leaves the checkout, its index and .git byte for byte as they were, and nothing running."""
    good = repo.git("rev-parse", "HEAD")
    for number in range(8):
        repo.commit(f"neutral {number}", note=f"# {number}\n")
    bad = repo.commit("changed", net=CHANGED)
    before = fingerprint(repo.dir)
    command = [sys.executable, "-m", "opguard_ci", "bisect", "--good", good, "--bad", bad, "recipe.py:train"]
    for seconds in (1.0, 6.0, 9.0):
        running = subprocess.Popen(command, cwd=repo.dir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert fingerprint(repo.dir) == before
    assert search(repo, good, bad)["first_bad"] == bad
