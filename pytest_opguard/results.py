"""What a session says about its verdicts: the summary's line, and the files of ``--opguard-report``."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_opguard.outcome import attached

_MAX_NAME: Final = 100


class Results:
    """Collects what the tests' reports carry; under xdist they come from all workers to the controller's."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._documents: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a verdict, and write it."""
        found = attached(report)
        if found is None:
            return
        document, text = found
        self._documents[report.nodeid] = document
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            stem = self._folder / file_name(report.nodeid)
            stem.with_name(f"{stem.name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            stem.with_name(f"{stem.name}.txt").write_text(text + "\n", encoding="utf-8", errors="replace")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print one line about all verdicts, and what was blessed, with what is to be committed."""
        documents = list(self._documents.values())
        if not documents:
            return
        terminalreporter.write_line(summary(documents, self._folder))
        blessed = [document for document in documents if document["verdict"] == "ok" and "recipe" in document]
        if blessed:
            from opguard_ci.report.golden import render_blessed
            from opguard_ci.report.layout import plain

            for line in plain(render_blessed({"verdict": "ok", "results": blessed})).splitlines():
                terminalreporter.write_line(line)


def summary(documents: list[dict[str, Any]], folder: Path | None) -> str:
    """``opguard: 2 identical, 1 diverged; reference 1a2b… (1 cached, 2 measured); environment …``."""
    verdicts = Counter(str(document["verdict"]) for document in documents)
    parts = [", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))]
    references = [document["reference"] for document in documents if document.get("reference")]
    commits = sorted({str(each["commit"])[:12] for each in references if each.get("commit")})
    measured = Counter("cached" if each["cached"] else "measured" for each in references if "cached" in each)
    if commits:
        parts.append(f"reference {_few(commits)}{counted(measured)}")
    keys = sorted({str(document["environment"]) for document in documents if document.get("environment")})
    if keys:
        parts.append(f"environment {_few(keys)}")
    if folder is not None:
        parts.append(f"reports in {folder}")
    return f"opguard: {'; '.join(parts)}"


def counted(measured: Counter[str]) -> str:
    """`` (1 cached, 2 measured)``, the numbers left out if all are alike."""
    if len(measured) == 1:
        return f" ({next(iter(measured))})"
    return f" ({', '.join(f'{number} {word}' for word, number in sorted(measured.items()))})" if measured else ""


def file_name(nodeid: str) -> str:
    """A name for files about a test: letters, digits, dots, dashes and underscores, different for different tests."""
    digest = hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '_', nodeid).strip('._')[-_MAX_NAME:]}-{digest}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
