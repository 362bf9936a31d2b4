"""``opguard view``: the page, and the browser that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.cli import main
from tests.report.html.reading import Page


@pytest.fixture
def folder(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the traces is the current one, and there is no browser; pages go to another."""
    monkeypatch.chdir(recorded)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def view(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    capfd.readouterr()
    code = main(["view", "--json", *map(str, words)])
    return code, json.loads(capfd.readouterr().out)


def text_of(page: Path) -> str:
    return " ".join(Page(page.read_text()).texts)


def test_two_traces(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Their comparison as a page; the path is said where there is no browser."""
    code, document = view(capfd, "good", "edited", "-o", folder / "page.html")
    assert (code, document["file"], document["opened"]) == (0, str(folder / "page.html"), False)
    assert "eps 1e-05 -> 0.001" in text_of(folder / "page.html")
    assert main(["view", "good", "edited", "-o", str(folder / "page.html")]) == 0
    assert f"{folder}/page.html: there is no browser here" in capfd.readouterr().out


def test_what_a_verb_printed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The object of compare; of check, with its results; of a bisection."""
    main(["compare", "good", "edited", "--json"])
    compared = json.loads(capfd.readouterr().out)
    found: dict[str, Any] = {"schema": 1, "verdict": "found", "first_bad": "c" * 40, "good": "a" * 40, "bad": "b" * 40}
    found |= {"candidates": [], "transitions": [], "skipped": [], "runs": 3, "cached": 0, "hunks": [], "notes": []}
    found |= {"divergence": compared["first_divergence"], "target": "train.py"}
    result = {**compared, "recipe": "tiny", "target": "training.py:train"}
    checked = {"schema": 1, "verdict": "diverged", "results": [result, {**result, "recipe": "other"}]}
    for name, document, said in (
        ("compare", compared, "eps 1e-05 -> 0.001"),
        ("check", checked, "training.py:train"),
        ("bisect", found, "c" * 12),
    ):
        (folder / f"{name}.json").write_text(json.dumps(document))
        assert view(capfd, folder / f"{name}.json", "-o", folder / "page.html")[0] == 0
        assert said in text_of(folder / "page.html")


def test_one_trace_and_kept_ones(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A trace alone shows what it is; a folder with two is compared; a page is opened as it is."""
    _, document = view(capfd, "good")
    page = Path(document["file"])
    assert "training.py:train" in text_of(page)
    assert view(capfd, page)[1]["file"] == str(page)
    page.unlink()
    for side, trace in (("reference", "good"), ("candidate", "edited")):
        (folder / "kept" / "tiny").mkdir(parents=True, exist_ok=True)
        (folder / "kept" / "tiny" / side).symlink_to(Path(trace).absolute())
    assert view(capfd, folder / "kept", "-o", folder / "page.html")[0] == 0
    assert "eps 1e-05 -> 0.001" in text_of(folder / "page.html")


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        "not json",
        '{"verdict": 3}',
        '{"verdict": "error"}',
        '{"verdict": "ok", "results": [3]}',
        "[" * 99_999,
    ],
)
def test_what_is_no_report(content: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Anything else is refused in a sentence, and no page is left."""
    (folder / "a.json").write_text(content)
    code, document = view(capfd, folder / "a.json", "-o", folder / "page.html")
    assert (code, document["error"]["slug"]) == (2, "not-a-report")
    assert not (folder / "page.html").exists()
    (folder / "empty").mkdir()
    for path in (folder / "empty", folder / "gone.html", folder / "gone"):
        assert view(capfd, path)[0] == 2


def test_a_browser_gets_the_file(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its address on disk; nothing is served."""
    script = folder / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {folder}/shown\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    monkeypatch.setattr("webbrowser._tryorder", None)  # made when it is first asked for
    assert view(capfd, "good", "edited", "-o", folder / "page.html")[1]["opened"] is True
    assert (folder / "shown").read_text().strip() == (folder / "page.html").as_uri()
