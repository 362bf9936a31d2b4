from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_ci.errors import OpguardError, UsageError
from opguard_ci.worker.servers import Server, idle_seconds, list_servers, stop_servers

from .conftest import ENTRY, alive, ask, wait_for


def test_a_server_is_found_again(observe: Server) -> None:
    """Two calls with equal surroundings share one server, and doctor's list has it."""
    assert Server.connect("observe", entry=ENTRY).identity == observe.identity
    listed = {entry["identity"]: entry for entry in list_servers()}[observe.identity]
    assert (listed["profile"], listed["hash_seed"], listed["runs"]) == ("observe", observe.hash_seed, 0)


def test_a_second_server_has_another_hash_seed(observe: Server) -> None:
    """Two servers under observe differ in process, hash seed and the hashes of strings; two runs of one do not."""
    second = Server.connect("observe", instance=1, entry=ENTRY)
    runs = [ask(server, "describe") for server in (observe, observe, second)]
    assert runs[0].outcome["value"]["hash"] == runs[1].outcome["value"]["hash"]
    assert runs[0].outcome["value"]["hash"] != runs[2].outcome["value"]["hash"]
    assert runs[0].server != runs[2].server
    assert runs[0].hash_seed != runs[2].hash_seed
    assert runs[2].outcome["value"]["effective"]["hash_seed"] == "random"


def test_observe_touches_nothing(observe: Server) -> None:
    """The values in force under observe, and the environment key, are those of a fresh interpreter."""
    program = """
import json
from opguard_ci.determinism import environment, profile
document = environment.environment_document()
print(json.dumps([profile.effective(), document, environment.environment_key(document, "observe")]))
"""
    import json

    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{program}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    effective, document, key = json.loads(answer.stdout)
    seen = ask(observe, "describe").outcome["value"]
    assert seen["effective"] == effective
    assert seen["document"] == document
    assert seen["key"] == key
    assert seen["collects"]


def test_strict_is_in_force(strict: Server) -> None:
    """The switches of strict, as read back in the child."""
    values = ask(strict, "describe").outcome["value"]
    effective = values["effective"]
    assert effective["threads.intra_op"] == effective["threads.inter_op"] == "1"
    assert effective["flag.deterministic_algorithms"] == effective["flag.cudnn.deterministic"] == "True"
    for name in ("fill_uninitialized_memory", "cudnn.benchmark", "cudnn.allow_tf32", "matmul.bf16_reduced_precision"):
        assert effective[f"flag.{name}"] == "False", name
    assert effective["hash_seed"] == "0"
    assert values["environment"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_another_environment_is_another_server(observe: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that a library may have read at its import is not served by a server that lacks it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    other = Server.connect("observe", entry=ENTRY)
    assert other.identity != observe.identity
    assert ask(other, "describe").outcome["value"]["effective"]["threads.intra_op"] == "1"


def test_a_server_of_ones_own(cache: Path) -> None:
    """A started server is shared with nobody and ends when it is closed."""
    with Server.start("observe", entry=ENTRY) as server:
        assert ask(server, "nothing").server == server.identity
        assert alive(server.pid)
    assert not alive(server.pid)
    assert not server.path.exists()


def test_without_idle_time_a_server_ends_with_its_command(cache: Path) -> None:
    """OPGUARD_SERVER_IDLE=0: one server serves a whole command, and nothing runs after it, however it ended."""
    program = """
import os, signal
from opguard_ci.worker.servers import Server
first, second = (Server.connect("observe", entry="entries:execute") for _ in range(2))
assert first is second
print(first.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "OPGUARD_SERVER_IDLE": "0"}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    wait_for(lambda: not alive(int(answer.stdout)))


def test_a_server_ends_when_idle_or_without_its_folder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server ends OPGUARD_SERVER_IDLE seconds after its last run, and soon after its cache folder has gone."""
    monkeypatch.setenv("OPGUARD_SERVER_IDLE", "0.5")
    idle = Server.connect("observe", hash_seed=8, entry=ENTRY)
    monkeypatch.setenv("OPGUARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPGUARD_SERVER_IDLE", "100")
    homeless = Server.connect("observe", hash_seed=9, entry=ENTRY)
    shutil.rmtree(tmp_path / "cache")
    wait_for(lambda: not alive(idle.pid) and not alive(homeless.pid))
    assert not idle.path.exists()
    assert not (tmp_path / "cache").exists()


def test_stop_servers(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the sockets is private; all servers of it can be ended at once; a dead socket is swept up."""
    monkeypatch.setenv("OPGUARD_CACHE", str(tmp_path))
    server = Server.connect("observe", entry=ENTRY)
    assert server.path.parent.stat().st_mode & 0o077 == 0
    assert stop_servers() == 1
    assert not alive(server.pid)
    server.path.touch()
    assert list_servers() == []
    assert not server.path.exists()


def test_a_server_that_cannot_start_says_why(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server printed before it gave up is in the error."""
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OpguardError, match="this torch is broken") as caught:
        Server.connect("observe", entry=ENTRY)
    assert caught.value.slug == "server-start"


def test_the_socket_is_private(strict: Server) -> None:
    """Nobody else can connect to a server, whoever may enter its folder."""
    assert strict.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("text", "seconds"), [("", 300), ("0", 0), ("2.5", 2.5)])
def test_idle_seconds(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The idle time is a number of seconds, 300 by default."""
    monkeypatch.setenv("OPGUARD_SERVER_IDLE", text)
    assert idle_seconds() == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_idle_seconds_are_checked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is refused with the variable's name."""
    monkeypatch.setenv("OPGUARD_SERVER_IDLE", text)
    with pytest.raises(UsageError, match="OPGUARD_SERVER_IDLE"):
        idle_seconds()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder under another user's control could make us run that user's code."""
    monkeypatch.setenv("OPGUARD_CACHE", str(tmp_path))
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(UsageError, match="another user"):
        Server.connect("observe", entry=ENTRY)
