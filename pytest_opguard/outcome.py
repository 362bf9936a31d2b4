"""From a verdict to a test's outcome, its report and its properties."""

from __future__ import annotations

import bdb
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from opguard_ci.errors import OpguardError
from pytest_opguard.settings import Settings

if TYPE_CHECKING:
    from opguard_ci.guard import Project
    from opguard_ci.worker.places import Job

DOCUMENT: Final = pytest.StashKey[dict[str, Any]]()
"""The verdict object of an item, once there is one."""
TEXT: Final = pytest.StashKey[str]()
"""The same as text."""
_PROPERTIES: Final = pytest.StashKey[list[tuple[str, str]]]()
ATTRIBUTE: Final = "opguard"
"""The attribute of a test report that carries both as JSON, also from an xdist worker to the controller."""
_PASSES: Final = frozenset(("identical", "equivalent", "ok"))


class GuardFailure(bdb.BdbQuit):
    """A verdict that fails a test; its text is the report.

    It is raised at no place in the user's code, so pytest's ``--pdb``, which leaves ``BdbQuit`` alone, has nothing to
    show there; a divergence has had its own debugger by then.
    """

    __module__ = "builtins"  # so that pytest's summary begins with the verdict instead of a path to this class
    __qualname__ = "opguard"


class GuardError(GuardFailure):
    """What is no verdict about the test: its reference cannot be run, or opguard_ci failed. An error, no failure."""

    __module__ = "builtins"
    __qualname__ = "opguard"


def conclude(item: pytest.Item, document: dict[str, Any], settings: Settings, advice: str = "") -> None:
    """Keep the verdict for the reports, and fail, skip or pass the test by it. ``advice``: the report's last line."""
    verdict = document["verdict"]
    passes = verdict in _PASSES and not (settings.strict and verdict == "equivalent")
    text = _text(document)
    if verdict == "equivalent" and not passes:
        text += "\nequivalent fails here: strict is set.\n"
    if advice and not passes:
        text += f"\n{advice}\n"
    _record(item, document, text.strip("\n"))
    if verdict == "no-reference" and document.get("missing") == "skip":
        pytest.skip(f"no-reference: {' '.join(document['notes'])}")
    if passes:
        return
    if (document.get("error") or {}).get("side") == "reference":
        raise GuardError(text.strip("\n"))
    raise GuardFailure(text.strip("\n"))


@contextmanager
def explained(item: pytest.Item) -> Iterator[None]:
    """Turn errors of opguard_ci into outcomes of the test: the user's mistakes fail it, defects of ours are errors."""
    from opguard_ci.report.crash import write_crash_file
    from opguard_ci.report.layout import plain
    from opguard_ci.report.text import error_lines

    try:
        yield
    except (GuardFailure, pytest.skip.Exception, pytest.fail.Exception):
        raise
    except Exception as error:
        told = error
        if not isinstance(error, OpguardError):
            told = OpguardError("internal", write_crash_file(error, ["pytest", item.nodeid]))
        assert isinstance(told, OpguardError)
        document = told.to_json()
        text = plain(error_lines(document)).strip("\n")
        _record(item, dict(document), text)
        kind = GuardError if told.exit_code == OpguardError.exit_code else GuardFailure
        raise kind(text) from (None if told is error else error)


def bisect_line(project: Project, job: Job, document: Mapping[str, Any], profile: str | None) -> str:
    """The command that finds the commit between the reference and HEAD, after what must be done before it.

    Empty where a search can say no more, or where the golden's commit is gone.
    """
    if document["verdict"] != "diverged":
        return ""
    good, candidate = _good_end(project, document), str(document["candidate"]["commit"])
    if good is None:
        return ""
    changed = candidate.endswith("+dirty")
    words = ["opguard", "bisect", "--good", good, "--bad", "HEAD" if changed else candidate]
    if profile is not None:
        words += ["--profile", profile]
    line = shlex.join([*words, job.target, *(("--", *job.argv) if job.argv else ())])
    return f"The working tree has changes: commit them before a search can look at them.\n{line}" if changed else line


def _good_end(project: Project, document: Mapping[str, Any]) -> str | None:
    reference = document["reference"]
    if reference["kind"] == "commit":
        return str(reference["commit"])
    golden = project.goldens.find(document["recipe"], reference["environment"])
    return None if golden is None else project.references.commit_of(golden)


def _text(document: Mapping[str, Any]) -> str:
    from opguard_ci.report.layout import plain
    from opguard_ci.report.text import render

    if document["verdict"] == "ok":
        return f"golden {document['path']}: {document['old'] or 'none'} -> {document['new']}"
    return plain(render(document))


def keep(item: pytest.Item, document: dict[str, Any]) -> None:
    """Keep the verdict for the reports and let something else decide about the test."""
    _record(item, document, _text(document).strip("\n"))


def _record(item: pytest.Item, document: dict[str, Any], text: str) -> None:
    """Put the verdict where reports find it: this item's stash and its properties (junit.xml)."""
    item.stash[DOCUMENT], item.stash[TEXT] = document, text
    reference = document.get("reference") or {}
    first = document.get("first_divergence") or {}
    environment = document.get("environment") or (document.get("candidate") or {}).get("environment")
    properties = {
        "verdict": document["verdict"],
        "reference": reference.get("commit") or reference.get("path"),
        "environment": environment,
        "op": first.get("op"),
        "step": first.get("step"),
    }
    before = item.stash.get(_PROPERTIES, [])  # of an earlier attempt, where a plugin runs failed tests again
    item.user_properties[:] = [entry for entry in item.user_properties if entry not in before]
    found = [(name, str(value)) for name, value in properties.items() if value is not None]
    item.stash[_PROPERTIES] = found
    item.user_properties += found


def attach(item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> None:
    """Give a finished phase's report the verdict, and show a failure as its report alone."""
    if DOCUMENT not in item.stash or report.when == "teardown":
        return
    document, text = item.stash[DOCUMENT], item.stash[TEXT]
    if isinstance(error, GuardFailure):
        report.longrepr = pytest.ExceptionInfo.from_exception(error).getrepr(style="value", chain=False)
        if isinstance(error, GuardError):
            report.when = "setup"  # what fails outside of the call is an error to pytest, its summary and junit.xml
    elif document["verdict"] in ("equivalent", "ok"):
        report.sections.append(("opguard", text))
    if report.when == "call" or report.failed or report.skipped:
        setattr(report, ATTRIBUTE, json.dumps({"document": document, "text": text}))


def attached(report: pytest.TestReport) -> tuple[dict[str, Any], str] | None:
    """The verdict object and its text, if this report carries them."""
    found = getattr(report, ATTRIBUTE, None)
    if found is None:
        return None
    both = json.loads(found)
    return both["document"], both["text"]
