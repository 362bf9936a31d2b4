from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import COMPARE_KEYS, opguard, opguard_json
from tests.gitrepo import fingerprint
from tests.guarded import Guarded
from tests.report.html.reading import Page

pytestmark = pytest.mark.usefixtures("shared_servers")


@pytest.fixture
def repo(tmp_path: Path) -> Guarded:
    """The second commit has another eps; configured as the project's recipe."""
    repo = Guarded(tmp_path / "r", config='recipes = ["*.py"]')
    repo.change("another eps", eps="1e-3")
    return repo


def test_the_object_of_a_check(repo: Guarded) -> None:
    """Exit 1; the contract's keys for every recipe; the exact command that goes on; the checkout as it was."""
    before = fingerprint(repo.dir)
    code, document = opguard_json("check", "--reference", "HEAD~1", cwd=repo.dir)
    assert (code, document["schema"], document["verdict"]) == (1, 1, "diverged")
    (result,) = document["results"]
    assert {"recipe", "target", *COMPARE_KEYS} <= set(result)
    assert (result["target"], result["reference"]["kind"]) == ("recipe.py:train", "commit")
    assert result["reference"]["commit"] == repo.first
    assert result["first_divergence"]["op"] == "aten.native_layer_norm.default"
    head = repo.git("rev-parse", "HEAD")
    assert result["command"] == f"opguard bisect --good {repo.first} --bad {head} recipe.py:train"
    assert fingerprint(repo.dir) == before


def test_the_text_of_a_check(repo: Guarded) -> None:
    """A header, a line a recipe, and a block that ends with the command; from a folder below, too."""
    (repo.dir / "sub").mkdir()
    done = opguard("check", "--reference", repo.first, cwd=repo.dir / "sub")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"opguard check: 1 recipe, reference commit {repo.first[:12]} (")
    assert ", environment " in lines[0] and lines[0].endswith(", profile strict")
    assert lines[2].startswith("diverged  recipe.py:train  ")
    assert lines[-1].strip().startswith(f"opguard bisect --good {repo.first} --bad ")
    assert shlex.split(lines[-1])[-1] == "../recipe.py:train"


def test_equal_code_passes_unless_strict_minds(repo: Guarded) -> None:
    """Identical is 0 in any case; equivalent is 1 under --strict."""
    assert opguard_json("check", "--reference", "HEAD", "--strict", cwd=repo.dir)[0] == 0
    repo.change("detour", eps="1e-3", disturb="torch.ones(3).exp()")
    assert opguard_json("check", "--reference", "HEAD~1", cwd=repo.dir)[0] == 0
    code, document = opguard_json("check", "--reference", "HEAD~1", "--strict", cwd=repo.dir)
    assert (code, document["verdict"]) == (1, "equivalent")


def test_a_golden_decides_where_no_commit_is_given(repo: Guarded) -> None:
    """Without one the check fails and names the command that records it; --missing skip passes."""
    code, document = opguard_json("check", cwd=repo.dir)
    (result,) = document["results"]
    assert (code, document["verdict"]) == (3, "no-reference")
    assert result["command"] == "opguard bless recipe.py:train --reason TEXT"
    elsewhere = opguard_json("check", "--golden", "no where", cwd=repo.dir)[1]["results"][0]
    assert elsewhere["command"] == "opguard bless --golden 'no where' recipe.py:train --reason TEXT"
    assert "no where, which --golden names, is no folder." in elsewhere["notes"]
    assert opguard_json("check", "--missing", "skip", cwd=repo.dir)[0] == 0
    done = opguard("bless", "--reason", "as it should be", cwd=repo.dir)
    assert (done.returncode, done.stderr) == (0, "")
    code, document = opguard_json("check", cwd=repo.dir)
    assert (code, document["verdict"], document["results"][0]["reference"]["kind"]) == (0, "identical", "golden")
    assert document["results"][0]["reference"]["path"].startswith("golden/recipe.py_train-")
    code, document = opguard_json("check", "--golden", "elsewhere", cwd=repo.dir)
    assert (code, document["verdict"]) == (3, "no-reference")


def test_the_worst_recipe_decides(repo: Guarded) -> None:
    """Diverged comes before untestable, untestable before a missing reference; each has its result."""
    raising = repo.dir.joinpath("recipe.py").read_text().replace("    model = ", "    raise OSError\n    model = ")
    repo.put("raises.py", raising)
    code, document = opguard_json("check", "--reference", repo.first, cwd=repo.dir)
    assert (code, document["verdict"]) == (1, "diverged")
    assert {r["target"]: r["verdict"] for r in document["results"]} == {
        "raises.py:train": "untestable",
        "recipe.py:train": "diverged",
    }
    code, document = opguard_json("check", "raises.py:train", "--reference", repo.first, cwd=repo.dir)
    assert (code, document["verdict"]) == (4, "untestable")


def test_bisect_goes_on_by_itself(repo: Guarded) -> None:
    """--bisect names the commit, and its hunk; --html shows both comparisons with their operators."""
    culprit = repo.git("rev-parse", "HEAD")
    repo.change("later", eps="1e-3", before="# more\n")
    words = ("--reference", repo.first, "--bisect", "--html", "r.html")
    code, document = opguard_json("check", *words, cwd=repo.dir)
    page = Page((repo.dir / "r.html").read_text(encoding="utf-8"))
    assert page.text.count("side by side") == 2
    assert culprit[:12] in page.text and "net.py:" in page.text
    found = document["results"][0]["bisect"]
    assert (code, found["verdict"], found["first_bad"]) == (1, "found", culprit)
    assert [hunk["file"] for hunk in found["hunks"]] == ["net.py"]


def test_a_dirty_tree_is_checked_but_not_bisected(repo: Guarded) -> None:
    """The command stands for after the commit; a bisection of what is not committed finds nothing."""
    repo.net(eps="1e-2")
    code, document = opguard_json("check", "--reference", "HEAD", "--bisect", cwd=repo.dir)
    (result,) = document["results"]
    head = repo.git("rev-parse", "HEAD")
    assert (code, result["candidate"]["commit"]) == (1, f"{head}+dirty")
    assert result["command"] == f"opguard bisect --good {head} --bad HEAD recipe.py:train"
    assert result["bisect"]["verdict"] == "nothing"


def test_reports_for_ci(repo: Guarded, tmp_path: Path) -> None:
    """JUnit and GitHub from one call; with --json the annotations go to standard error, which GitHub reads as well."""
    junit, summary, kept = tmp_path / "j unit.xml", tmp_path / "summary.md", tmp_path / "kept"
    summary.write_text("before\n")
    code, document = opguard_json(
        "check", "--reference", repo.first, "--junit", junit, "--github", "--keep", kept,
        cwd=repo.dir, GITHUB_STEP_SUMMARY=str(summary), GITHUB_WORKSPACE=str(repo.dir.parent),
    )  # fmt: skip
    assert code == 1
    root = ET.parse(junit).getroot()
    (case,) = root.findall(".//testcase")
    assert (case.get("name"), case.get("file")) == ("recipe.py:train", "recipe.py")
    assert case.find("failure") is not None
    assert summary.read_text().startswith("before\n### opguard: diverged")
    for side in ("reference", "candidate"):
        assert Path(document["results"][0][side]["trace"]) == kept / document["results"][0]["recipe"] / side
        assert (kept / document["results"][0]["recipe"] / side / "manifest.json").exists()


@pytest.mark.parametrize("as_json", [False, True])
def test_annotations_and_foreign_commands(repo: Guarded, tmp_path: Path, as_json: bool) -> None:
    """Whatever a target prints is between stop-commands and its token; the annotation comes after."""
    repo.change(disturb='print("::error::from the target", flush=True)', eps="1e-3")
    words = ["check", "--reference", repo.first, "--github", *(["--json"] if as_json else [])]
    done = opguard(*words, cwd=repo.dir, GITHUB_STEP_SUMMARY=str(tmp_path / "s"), GITHUB_WORKSPACE=str(repo.dir.parent))
    assert done.returncode == 1, done.stderr
    if as_json:
        assert json.loads(done.stdout)["verdict"] == "diverged"
        assert done.stdout.count("\n") == 1
    stopped, heeded = "", []
    for line in (done.stderr if as_json else done.stdout).splitlines():
        if line == f"::{stopped}::":
            stopped = ""
        elif line.startswith("::stop-commands::") and not stopped:
            stopped = line.removeprefix("::stop-commands::")
        elif line.startswith("::") and not stopped:
            heeded.append(line)
    assert len(heeded) == 1
    assert heeded[0].startswith("::error file=r/recipe.py,line=")


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (["--reference", "nowhere"], "unknown-commit"),
        (["nowhere.py:f"], "target-not-found"),
        (["--github"], "no-step-summary"),
        (["--reference", "HEAD", "--junit", "no/such/folder.xml"], "report-unwritable"),
        (["--missing", "perhaps"], "usage"),
    ],
)
def test_what_makes_no_sense(repo: Guarded, words: list[str], slug: str) -> None:
    """Exit 2 and a slug."""
    code, document = opguard_json("check", *words, cwd=repo.dir)
    assert (code, document["error"]["slug"]) == (2, slug)


def test_a_shallow_clone_is_told_what_to_do(repo: Guarded, tmp_path: Path) -> None:
    """Instead of comparing with something else."""
    repo.git("clone", "-q", "--depth", "1", f"file://{repo.dir}", str(tmp_path / "shallow"))
    code, document = opguard_json("check", "--reference", "HEAD~1", cwd=tmp_path / "shallow")
    assert (code, document["error"]["slug"]) == (2, "shallow-clone")
    assert "fetch-depth: 0" in document["error"]["message"]


def test_a_defect_of_ours_is_one_result(repo: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit 5, with a file to attach; other recipes are still checked."""
    from opguard_ci import cli

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("opguard_ci.guard.check", broken)
    monkeypatch.chdir(repo.dir)
    assert cli.main(["check", "--junit", str(tmp_path / "j.xml")]) == 5
    (case,) = ET.parse(tmp_path / "j.xml").getroot().findall(".//testcase")
    error = case.find("error")
    assert error is not None and "ZeroDivisionError" in str(error.get("message"))


def test_pdb_stops_before_the_operator(repo: Guarded) -> None:
    """What diverged is run again up to there, among the user's frames; then the report."""
    done = opguard("check", "--reference", "HEAD~1", "--pdb", cwd=repo.dir, stdin="p step, EPS\nq\n")
    assert done.returncode == 1, done.stderr
    before, _, report = done.stdout.partition("opguard check:")
    assert "before aten.native_layer_norm.default (step 0, forward, 1): arguments: eps 1e-05 -> 0.001" in before
    assert "recipe.py(12)train()\n-> loss = model(" in before and "(Pdb) (0, 0.001)\n" in before
    assert "diverged  recipe.py:train" in report


def test_in_process(repo: Guarded) -> None:
    """The working tree's run is made in this process, with the numbers of any other; of one target, in one rank."""
    repo.change("says where", eps="1e-5", before="import os\nprint('ran in', os.getppid())\n")
    done = opguard("check", "--reference", repo.first, "--in-process", cwd=repo.dir, PYTHONHASHSEED="0")
    assert done.returncode == 0, done.stderr
    assert f"ran in {os.getpid()}\n" in done.stdout and "identical  recipe.py:train" in done.stdout
    assert "could not be set" not in done.stdout
    refused = {"usage": ["recipe.py:train", "recipe.py:train", "net.py"], "ranks-in-process": ["--ranks", "2"]}
    for slug, words in refused.items():
        code, document = opguard_json("check", "--in-process", *words, cwd=repo.dir)
        assert (code, document["error"]["slug"]) == (2, slug)


def test_traces_of_a_changed_tree_are_known_again(repo: Guarded, tmp_path: Path) -> None:
    """What --keep leaves of a working tree with changes can be looked at more closely while these stand."""
    repo.net(eps="1e-2")
    assert opguard("check", "--reference", "HEAD", "--keep", tmp_path / "kept", cwd=repo.dir).returncode == 1
    (reference,), (candidate,) = ((tmp_path / "kept").glob(f"*/{side}") for side in ("reference", "candidate"))
    words = ["compare", reference, candidate, "--zoom"]
    code, document = opguard_json(*words, cwd=repo.dir)
    assert (code, document["verdict"]) == (1, "diverged"), document
    assert document["first_divergence"]["tensors"]
    repo.net(eps="1e-1")
    assert opguard_json(*words, cwd=repo.dir)[1]["error"]["slug"] == "cannot-run-again"


def test_a_reproducer_in_a_window(repo: Guarded) -> None:
    """Zoom and script come from runs with the window of the check; what it leaves in the checkout is no change."""
    words = ["check", "--reference", "HEAD~1", "--from-step", "0", "--to-step", "0", "--repro", "repro"]
    code, document = opguard_json(*words, cwd=repo.dir)
    (result,) = document["results"]
    assert (code, result["window"]) == (1, {"from": 0, "to": 0})
    assert result["first_divergence"]["tensors"]
    script = [sys.executable, Path(result["reproducer"], "repro.py")]
    done = subprocess.run(script, cwd=repo.dir, capture_output=True, text=True)
    assert "the candidate's call here, and recorded: equal" in done.stdout, done.stderr
    assert "HEAD" not in result["command"] and not any("has changes" in note for note in result["notes"])
