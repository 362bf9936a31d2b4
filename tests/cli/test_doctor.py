from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import opguard, opguard_json


def test_doctor(project: Path) -> None:
    """What this machine is, per profile; the state of git is said and not needed. The key is that of a run."""
    code, document = opguard_json("doctor", cwd=project)
    assert (code, document["verdict"]) == (0, "ok")
    assert "torch" in document["environment"]["document"]
    strict = document["profiles"]["strict"]
    assert strict["problems"] == [] and strict["document"]["threads.intra_op"] == "1"
    assert len({answer["key"] for answer in document["profiles"].values()}) == len(document["profiles"])
    assert document["git"]["slug"] == "not-a-repository"
    assert document["servers"] == [] or document["servers"][0]
    for profile in ("observe", "strict"):
        words = ["run", "training.py:train", "-o", profile, "--profile", profile]
        assert opguard_json(*words, cwd=project)[1]["environment"] == document["profiles"][profile]["key"]


def test_overridden_variables_are_said(project: Path) -> None:
    """A pin that replaces the caller's own setting is no secret."""
    done = opguard("doctor", cwd=project, OMP_NUM_THREADS="2")
    assert "OMP_NUM_THREADS=2 of the environment is 1 under the profile strict" in " ".join(done.stdout.split())


def test_difference(project: Path) -> None:
    """Two environments, from a trace or a saved object, are explained in words."""
    document = {"key": "aaaa", "document": {"torch": "2.11.0", "python": "3.12.1"}}
    (project / "a.json").write_text(json.dumps({"schema": 1, "environment": document}))
    (project / "b.json").write_text(json.dumps({"key": "bbbb", "document": {"torch": "2.13.0", "python": "3.12.1"}}))
    code, answer = opguard_json("doctor", "--diff", "a.json", "b.json", cwd=project)
    assert (code, answer["same"], answer["keys"]) == (0, False, ["aaaa", "bbbb"])
    assert answer["diff"] == ["torch: 2.11.0 -> 2.13.0"]
    assert opguard_json("run", "training.py:train", "-o", "t", cwd=project)[0] == 0
    assert opguard_json("doctor", "--diff", "t", "t/manifest.json", cwd=project)[1]["diff"] == []


def test_not_an_environment(project: Path) -> None:
    """Files of something else are refused by name."""
    for text in ("[]", "{}", "not json", '{"document": {"torch": 1}}', '{"environment": 3}'):
        (project / "x.json").write_text(text)
        code, document = opguard_json("doctor", "--diff", "x.json", "x.json", cwd=project)
        assert code == 2 and document["error"]["slug"] in ("not-an-environment", "not-a-trace")
    assert opguard_json("doctor", "--diff", "no", "no", cwd=project)[1]["error"]["slug"] == "trace-not-found"
