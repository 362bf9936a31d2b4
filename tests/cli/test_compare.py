from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment, opguard, opguard_json
from tests.cli.conftest import TRAINING
from tests.conftest import SERVERS_IDLE
from tests.gitrepo import GitRepo
from tests.report.html.reading import Page


def edit_manifest(trace: Path, **changes: object) -> None:
    file = trace / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_identical(traces: Path) -> None:
    """Two equal runs: exit 0, no divergence, both sides named."""
    code, document = opguard_json("compare", "good", "again", cwd=traces)
    assert (code, document["verdict"], document["first_divergence"]) == (0, "identical", None)
    assert document["reference"]["trace"] == "good" and document["candidate"]["trace"] == "again"
    assert document["reference"]["environment"] == document["candidate"]["environment"]
    assert opguard("compare", "good", "again", "--strict", cwd=traces).returncode == 0


def test_diverged(traces: Path) -> None:
    """An edited eps is found at its operator, argument and line."""
    code, document = opguard_json("compare", "good", "edited", cwd=traces)
    assert (code, document["verdict"]) == (1, "diverged")
    first = document["first_divergence"]
    assert (first["op"], first["cause"], first["step"]) == ("aten.native_layer_norm.default", "arguments", 0)
    assert first["module"] == "1"
    done = opguard("compare", "good", "edited", cwd=traces)
    assert done.returncode == 1
    assert done.stdout.startswith("diverged: step 0, forward, aten.native_layer_norm.default in 1: arguments\n")
    assert "0.001" in done.stdout and "training.py:" in done.stdout


def test_html(traces: Path) -> None:
    """One file that holds the verdict, the line, the steps and the operators of both runs; without torch."""
    code, _ = opguard_json("compare", "good", "edited", "--html", "r.html", cwd=traces)
    page = Page((traces / "r.html").read_text(encoding="utf-8"))
    assert code == 1
    for said in (
        "diverged",
        "aten.native_layer_norm.default",
        "training.py:",
        "parameters",
        "eps=0.001",
        "side by side",
    ):
        assert said in page.text
    code, document = opguard_json("compare", "good", "edited", "--html", "nowhere/r.html", cwd=traces)
    assert (code, document["error"]["slug"]) == (2, "report-unwritable")


def test_manifest_as_argument(traces: Path) -> None:
    """A manifest stands for its trace."""
    assert opguard_json("compare", "good/manifest.json", "again", cwd=traces)[1]["verdict"] == "identical"


def test_needs_no_torch(traces: Path) -> None:
    """Traces are compared and shown by a process that never imports torch."""
    for words in (["compare", "good", "edited", "--html", "r.html"], ["show", "good", "--events", "0..9", "--tensors"]):
        program = f"import sys\nfrom opguard_ci.cli import main\nmain({words!r})\nprint('torch' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=traces, env=environment(), capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "False"


def test_other_arguments_and_steps_are_told(traces: Path) -> None:
    """Two traces of other runs: the header names the arguments, a note the numbers of steps."""
    manifest = json.loads((traces / "good" / "manifest.json").read_text())
    edit_manifest(traces / "again", argv=["--lr", "0.1"], steps=manifest["steps"][:-1])
    done = opguard("compare", "good", "again", cwd=traces)
    assert "reference   arguments none, good" in done.stdout and "candidate   arguments --lr 0.1, again" in done.stdout
    steps = sum(step["step"] >= 0 for step in manifest["steps"])
    assert f"The reference has {steps} steps, the candidate {steps - 1}." in done.stdout


def test_steps_that_nobody_asked_for(traces: Path) -> None:
    """A run that was asked for fewer steps lacks the others for no reason of the code's."""
    manifest = json.loads((traces / "good" / "manifest.json").read_text())
    fewer = [step for step in manifest["steps"] if step["step"] < 1]
    edit_manifest(traces / "again", asked_steps=1, steps=fewer)
    for pair in (("good", "again"), ("again", "good")):
        code, document = opguard_json("compare", *pair, cwd=traces)
        assert (code, document["verdict"]) == (0, "identical")
        assert "One side was asked for its first 1 steps only: the others were not compared." in document["notes"]
    edit_manifest(traces / "again", asked_steps=2, steps=fewer)  # one of the two is missing
    assert opguard_json("compare", "good", "again", cwd=traces)[1]["verdict"] == "diverged"


def test_run_that_was_cut(traces: Path) -> None:
    """Agreement with a run that did not get to its end proves nothing."""
    edit_manifest(traces / "again", complete=False, outcome=None)
    code, document = opguard_json("compare", "good", "again", cwd=traces)
    assert (code, document["verdict"]) == (4, "untestable")
    assert any("did not run to its end" in note for note in document["notes"])


def test_truncated_events(traces: Path) -> None:
    """A trace that was cut is refused, not half compared."""
    events = traces / "edited" / "events-0.arrows"
    os.truncate(events, events.stat().st_size // 2)
    code, document = opguard_json("compare", "good", "edited", cwd=traces)
    assert (code, document["error"]["slug"]) == (2, "trace-damaged")


def test_foreign_folder(traces: Path) -> None:
    """A folder without a manifest, and a manifest of something else, are no traces."""
    (traces / "other").mkdir()
    assert opguard_json("compare", "good", "other", cwd=traces)[1]["error"]["slug"] == "not-a-trace"
    (traces / "other" / "manifest.json").write_text('{"name": "web app"}')
    assert opguard_json("compare", "good", "other", cwd=traces)[1]["error"]["slug"] == "not-a-trace"


@pytest.mark.parametrize(("key", "value"), [("schema", 2), ("scheme", "xor-1"), ("ranks", 2)])
def test_other_kind_of_trace(key: str, value: object, traces: Path) -> None:
    """Another schema, fingerprint scheme or number of ranks is exit code 3, and the field is named."""
    edit_manifest(traces / "edited", **{key: value})
    code, document = opguard_json("compare", "good", "edited", cwd=traces)
    assert (code, document["verdict"]) == (3, "error")
    assert key.removesuffix("s") in document["error"]["message"]


def test_equal_digests_decide_by_the_manifests_alone(recorded: Path) -> None:
    """Neither Arrow nor numpy is loaded for them, and the event files need not be there."""
    code = (
        "import sys; from opguard_ci.cli import main; code = main(['compare', 'good', 'again']);"
        "assert not {'numpy', 'pyarrow', 'torch', 'git', 'rich'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=recorded, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout.partition("\n")[0][:9]) == (0, "", "identical")


def test_perfetto(traces: Path, cache: Path) -> None:
    """Both runs in a file for ui.perfetto.dev, of traces and of two configurations; not without operators."""
    assert opguard_json("compare", "good", "edited", "--perfetto", "runs.json", cwd=traces)[0] == 1
    words = ["compare", "training.py", "--perfetto", "both.json", "--steps", "3", "--", "1e-5", ":::", "1e-3"]
    assert opguard(*words, cwd=traces, OPGUARD_CACHE=str(cache), OPGUARD_SERVER_IDLE=SERVERS_IDLE).returncode == 1
    for file in ("runs.json", "both.json"):
        rows = json.loads((traces / file).read_text())["traceEvents"]
        names = [row["name"] for row in rows]
        assert names.count("aten.native_layer_norm.default") == 6 and names.count("step 2") == 2
        assert {row["pid"] for row in rows if row["ph"] == "i"} == {1, 2}
    edit_manifest(traces / "edited", level="contract")
    code, document = opguard_json("compare", "good", "edited", "--perfetto", "no.json", cwd=traces)
    assert (code, document["error"]["slug"]) == (2, "nothing-to-draw")
    assert not (traces / "no.json").exists()


def test_zoom_measures_the_divergence_and_leaves_a_reproducer(recorded: Path, tmp_path: Path, cache: Path) -> None:
    """Both targets are run again where they were recorded; the report names the script."""
    variables = {"OPGUARD_CACHE": str(cache), "OPGUARD_SERVER_IDLE": SERVERS_IDLE}
    words = ["compare", "good", "edited", "--repro", tmp_path / "repro"]
    done = opguard(*words, cwd=recorded, **variables)
    assert done.returncode == 1, done.stderr
    assert "output 0  float32[4,8]" in done.stdout
    assert f"python {tmp_path}/repro/repro.py" in done.stdout
    assert (tmp_path / "repro" / "reference-before.safetensors").exists()
    code, document = opguard_json(*words, cwd=recorded, **variables)
    assert (code, document["error"]["slug"]) == (2, "output-exists")
    assert opguard("compare", "good", "edited", "--repro", "here", cwd=recorded, **variables).returncode == 1
    assert opguard("compare", "good", "edited", "--zoom", cwd=recorded, **variables).returncode == 1
    code, document = opguard_json("compare", "good", "again", "--zoom", cwd=recorded, **variables)
    assert (code, document["verdict"]) == (0, "identical")
    assert "no divergence" in document["notes"][-1]


def test_zoom_refuses_code_that_is_gone(traces: Path, tmp_path: Path) -> None:
    """A file was edited since: what it gives now is not what was recorded."""
    (traces / "training.py").write_text((traces / "training.py").read_text() + "\n# edited\n")
    code, document = opguard_json("compare", "good", "edited", "--zoom", cwd=traces)
    assert (code, document["error"]["slug"]) == (2, "cannot-run-again")
    assert "are others now" in document["error"]["message"]


def test_zoom_runs_commits_from_their_trees(tmp_path: Path, cache: Path) -> None:
    """The reference's commit is not checked out any more; a changed working tree is only run while it is the same."""
    variables = {"OPGUARD_CACHE": str(cache), "OPGUARD_SERVER_IDLE": SERVERS_IDLE}
    repo = GitRepo(tmp_path / "r")
    repo.put("training.py", TRAINING)
    repo.commit()
    assert opguard("run", "training.py:train", "-o", tmp_path / "old", cwd=repo.dir, **variables).returncode == 0
    repo.put("training.py", TRAINING.replace("0.1", "0.125"))
    assert opguard("run", "training.py:train", "-o", tmp_path / "new", cwd=repo.dir, **variables).returncode == 0
    repo.put("notes.txt", "beside the code")
    words = ["compare", tmp_path / "old", tmp_path / "new", "--zoom"]
    code, document = opguard_json(*words, cwd=repo.dir, **variables)
    assert (code, document["verdict"]) == (1, "diverged"), document
    (tensor,) = document["first_divergence"]["tensors"]
    assert tensor["role"] == "written"
    repo.put("training.py", TRAINING)
    code, document = opguard_json(*words, cwd=repo.dir, **variables)
    assert (code, document["error"]["slug"]) == (2, "cannot-run-again")
    code, document = opguard_json(*words, cwd=tmp_path, **variables)
    assert "in no repository" in document["error"]["message"]


def test_pdb_stops_before_the_operator_in_the_users_frames(recorded: Path, cache: Path) -> None:
    """Frames of torch and of ours are not there; steps go on in the user's code; q ends the run; then the report."""
    typed = "w\np step\nn\np loss.shape\nq\n"
    done = opguard("compare", "good", "edited", "--pdb", cwd=recorded, stdin=typed, OPGUARD_CACHE=str(cache))
    assert done.returncode == 1, done.stderr
    before, _, report = done.stdout.partition("diverged:")
    assert "before aten.native_layer_norm.default (step 0, forward, 1): arguments: eps" in before
    assert "-> loss = model(torch.randn(4, 4)).square().mean()\n(Pdb)" in before
    assert "(Pdb) 0\n" in before
    assert "-> loss.backward()\n(Pdb) torch.Size([])\n" in before
    assert all(name not in before for name in ("site-packages", "torch/nn", "opguard_ci/"))
    assert "arguments" in report


def test_pdb_says_what_it_cannot_do(recorded: Path) -> None:
    """With --json, or with /dev/null to read from, there is no terminal to talk on; one TARGET has no two traces."""
    code, document = opguard_json("compare", "good", "edited", "--pdb", cwd=recorded)
    assert (code, document["error"]["slug"]) == (2, "usage")
    done = opguard("compare", "good", "edited", "--pdb", cwd=recorded)
    assert (done.returncode, "no-terminal" in done.stderr) == (2, True), done.stderr
    done = opguard("compare", "training.py", "--pdb", cwd=recorded, stdin="")
    assert (done.returncode, "two traces" in done.stderr) == (2, True), done.stderr
