from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from opguard_ci.errors import OpguardError, UsageError
from opguard_ci.worker import client
from opguard_ci.worker.request import RunRequest, RunResult
from opguard_ci.worker.servers import Server

from .conftest import ENTRY, HERE, alive, ask, process_ids, wait_for

CLIENT = """
import sys
from opguard_ci.worker.client import run
from opguard_ci.worker.request import RunRequest
from opguard_ci.worker.servers import Server
server = Server.connect("observe", entry="entries:execute")
print(server.pid, flush=True)
run(RunRequest(sys.argv[1], cwd=".", output="unused", argv=tuple(sys.argv[2:]), profile="observe"), server=server)
"""


def test_two_runs_of_one_server_are_two_processes(strict: Server) -> None:
    """Each run has a process of its own; both name the server that they were forked from."""
    first, second = ask(strict, "describe"), ask(strict, "describe")
    assert first.status == second.status == "ok"
    assert first.outcome["value"]["pid"] != second.outcome["value"]["pid"]
    assert first.server == second.server == strict.identity
    assert first.hash_seed == "0"
    assert first.left_behind == ()


def test_a_second_run_is_quick(strict: Server) -> None:
    """A kept server answers a trivial run in 0.15 s at most (median of seven)."""
    import statistics
    import time

    def timed() -> float:
        begin = time.perf_counter()
        ask(strict, "nothing")
        return time.perf_counter() - begin

    assert statistics.median(timed() for _ in range(7)) <= 0.15


def test_training_repeats_under_strict(strict: Server) -> None:
    """Two trainings with unseeded programs agree under strict, which seeds all generators."""
    assert ask(strict, "train").outcome["value"] == ask(strict, "train").outcome["value"]
    assert ask(strict, "draw").outcome["value"] == ask(strict, "draw").outcome["value"]


def test_the_child_has_the_callers_surroundings(observe: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under observe environment, working directory and umask are the caller's, to the letter; stdin is empty."""
    monkeypatch.setenv("GITHUB_JOB", "seen by the child although no key covers it: \udcff")
    old = os.umask(0o027)
    try:
        seen = ask(observe, "describe").outcome["value"]
    finally:
        os.umask(old)
    assert seen["environment"] == dict(os.environ)
    assert seen["cwd"] == str(HERE)
    assert seen["umask"] == 0o027
    assert seen["stdin"] == ""
    assert seen["signals"] == [str(signal.SIG_DFL)] * 2
    assert seen["main"]
    assert not [name for name in seen["descriptors"] if name.startswith("socket:")]


def test_output_passes_through(strict: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """What the target and its programs print arrives on the caller's stdout and stderr, in order."""
    print("before")
    ask(strict, "speak")
    output = capfd.readouterr()
    assert output.out.split("\n") == ["before", "from a program", "to stdout", ""] or output.out.split("\n") == [
        "before",
        "to stdout",
        "from a program",
        "",
    ]
    assert output.err == "to stderr\n"


def test_output_can_be_sent_elsewhere(strict: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A caller that prints JSON on stdout gives the target another descriptor."""
    request = RunRequest("speak", cwd=str(tmp_path), output="unused", profile="strict")
    with (tmp_path / "out").open("w") as file:
        client.run(request, server=strict, stdout=file.fileno(), stderr=file.fileno())
    assert "to stdout" in (tmp_path / "out").read_text()
    assert capfd.readouterr().out == ""


def test_input_is_answered_with_end_of_file(strict: Server) -> None:
    """input() fails at once instead of waiting for a person; a defect of the entry is an internal error."""
    with pytest.raises(OpguardError, match="EOFError") as caught:
        ask(strict, "ask")
    assert caught.value.exit_code == 5


def test_usage_errors_keep_their_class(strict: Server) -> None:
    """What the entry refuses is raised in the caller, with slug and exit code."""
    with pytest.raises(UsageError, match="taken") as caught:
        ask(strict, "refuse")
    assert caught.value.slug == "output-exists"


def test_a_missing_working_directory_is_named(strict: Server, tmp_path: Path) -> None:
    """A request for a folder that is not there is a usage error."""
    request = RunRequest("nothing", cwd=str(tmp_path / "gone"), output="unused", profile="strict")
    with pytest.raises(UsageError, match="gone"):
        client.run(request, server=strict)


def test_segfault(strict: Server) -> None:
    """A crash in C names its signal, the last operator, and the user's line."""
    result = ask(strict, "segfault")
    assert result.status == "untestable"
    assert result.outcome["slug"] == "crashed"
    assert "SIGSEGV" in result.outcome["message"]
    assert "aten.mm.default" in result.outcome["message"]
    assert "entries.py" in result.outcome["message"]
    assert "in segfault" in result.outcome["traceback"]
    assert "ctypes" not in result.outcome["traceback"]


def test_killed(strict: Server) -> None:
    """A run that somebody kills says so, with the last operator."""
    outcome = ask(strict, "kill_itself").outcome
    assert outcome["slug"] == "killed"
    assert "SIGKILL" in outcome["message"]
    assert "aten.add.Tensor" in outcome["message"]


@pytest.mark.parametrize("code", ["0", "3"])
def test_os_exit_is_no_success(strict: Server, code: str) -> None:
    """A target that ends the process under us did not run to its end, not even with code 0."""
    outcome = ask(strict, "leave", code).outcome
    assert outcome["slug"] == "crashed"
    assert f"os._exit or a C exit, code {code}" in outcome["message"]


def test_only_the_run_reports(strict: Server) -> None:
    """A target that forks and lets the child fall through is reported once."""
    assert ask(strict, "fork_and_fall_through").outcome["value"] == "the target"


def test_exit_functions_run(strict: Server, tmp_path: Path) -> None:
    """Exit functions of the target run, as at the end of an interpreter."""
    ask(strict, "exit_function", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "ran"


def test_a_crash_after_the_end_is_noted(strict: Server) -> None:
    """The outcome stands, and the crash of an exit function is said."""
    result = ask(strict, "crash_at_exit")
    assert result.status == "ok"
    assert any("SIGABRT" in note for note in result.outcome["notes"])


def test_a_daemon_left_behind_is_ended(strict: Server) -> None:
    """A double fork in a new session that ignores SIGTERM is gone when the call returns, and is named."""
    result = ask(strict, "start_daemon")
    assert not alive(result.outcome["value"])
    assert result.left_behind == ("python",)


def test_timeout(strict: Server, tmp_path: Path) -> None:
    """A loop in C that ignores SIGTERM ends at its timeout with all it started; the message says where it was."""
    result = ask(strict, "stay", str(tmp_path / "pids"), timeout=1)
    child, daemon, warden = process_ids(tmp_path / "pids")
    assert result.outcome["slug"] == "timeout"
    assert "1 s" in result.outcome["message"]
    assert "aten.sum.default" in result.outcome["message"]
    assert "in stay" in result.outcome["traceback"]
    assert not alive(child)
    assert not alive(daemon)
    wait_for(lambda: not alive(warden))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_client_goes(cache: Path, tmp_path: Path, number: int) -> None:
    """SIGKILL and Ctrl-C of the client leave no process of the run; the server lives on."""
    command = [sys.executable, "-c", CLIENT, "stay", str(tmp_path / "pids")]
    with subprocess.Popen(
        command,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as program:
        assert program.stdout is not None
        server = int(program.stdout.readline())
        pids = process_ids(tmp_path / "pids")
        program.send_signal(number)
        _, error = program.communicate(timeout=30)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in error
        assert not any(alive(pid) for pid in pids[:2]), "Ctrl-C returned before the run had ended"
    wait_for(lambda: not any(alive(pid) for pid in pids))
    assert alive(server)


def in_background(server: Server, file: Path) -> tuple[threading.Thread, list[RunResult]]:
    results: list[RunResult] = []
    thread = threading.Thread(target=lambda: results.append(ask(server, "stay", str(file))))
    thread.start()
    return thread, results


def test_the_warden_is_killed(strict: Server, tmp_path: Path) -> None:
    """SIGKILL of the warden: the kernel ends the child, the server ends the rest, the caller is told."""
    thread, results = in_background(strict, tmp_path / "pids")
    child, daemon, warden = process_ids(tmp_path / "pids")
    os.kill(warden, signal.SIGKILL)
    thread.join(20)
    assert results[0].outcome["slug"] == "killed"
    assert "aten.sum.default" in results[0].outcome["message"]
    wait_for(lambda: not alive(child) and not alive(daemon))
    assert ask(strict, "nothing").status == "ok"


def test_the_child_is_killed(strict: Server, tmp_path: Path) -> None:
    """SIGKILL of the child alone ends what it started, too."""
    thread, results = in_background(strict, tmp_path / "pids")
    child, daemon, _ = process_ids(tmp_path / "pids")
    os.kill(child, signal.SIGKILL)
    thread.join(20)
    assert results[0].outcome["slug"] == "killed"
    assert not alive(daemon)


def test_the_server_is_killed(cache: Path, tmp_path: Path) -> None:
    """SIGKILL of the server ends its runs; the next call starts another."""
    server = Server.connect("observe", hash_seed=5, entry=ENTRY)
    thread, results = in_background(server, tmp_path / "pids")
    pids = process_ids(tmp_path / "pids")
    os.kill(server.pid, signal.SIGKILL)
    thread.join(20)
    assert "server was killed" in results[0].outcome["message"]
    wait_for(lambda: not any(alive(pid) for pid in pids))
    again = ask(server, "nothing")
    assert again.status == "ok"
    assert again.server != results[0].server
    assert again.hash_seed == "5"


def test_several_clients_at_once(strict: Server) -> None:
    """Runs of several clients do not disturb each other."""
    values: list[str] = []
    threads = [
        threading.Thread(target=lambda: values.append(str(ask(strict, "train").outcome["value"]))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(values) == 4
    assert len(set(values)) == 1


def test_a_file_for_the_last_operator(strict: Server, tmp_path: Path) -> None:
    """A caller may name the file in which the last operator is kept."""
    file = tmp_path / "breadcrumb"
    file.write_bytes(bytes(256))
    request = RunRequest("segfault", cwd=str(HERE), output="unused", profile="strict", breadcrumb=str(file))
    assert "aten.mm.default" in client.run(request, server=strict).outcome["message"]
    assert file.read_bytes().startswith(b"aten.mm.default\0")


def test_a_replaced_variable_is_said(strict: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that replaces a variable of the caller says so in the notes."""
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        notes = ask(strict, "nothing").outcome["notes"]
    assert "OMP_NUM_THREADS=2 of the environment is 1 under the profile strict" in notes


def test_in_process(tmp_path: Path) -> None:
    """A debugger's run happens in the caller's process; what cannot be pinned there any more is said."""
    program = """
import json, os
from opguard_ci.worker.client import run_in_process
from opguard_ci.worker.request import RunRequest
request = RunRequest("describe", cwd=".", output="unused", profile="strict")
print(json.dumps([os.getpid(), run_in_process(request, entry="entries:execute").to_json()]))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    pid, result = json.loads(answer.stdout)
    assert result["outcome"]["value"]["pid"] == pid
    assert result["server"] == ""
    assert result["outcome"]["value"]["effective"]["flag.deterministic_algorithms"] == "True"
    assert any(note.startswith("PYTHONHASHSEED=0 could not be set") for note in result["outcome"]["notes"])
