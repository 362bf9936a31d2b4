"""``opguard view``: the HTML report of traces, or of an object that ``--json`` printed, in a browser."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Any, Final

from opguard_ci.commands import EXIT_CODES, Result
from opguard_ci.commands.html import picture_of, write_report
from opguard_ci.errors import UsageError
from opguard_ci.report.layout import Line

NAME: Final = "view"
HELP: Final = "show the HTML report of traces, or of what --json printed, in a browser"

_PAIRS: Final = (("reference", "candidate"), ("run-1", "run-2"))
"""What ``--keep`` leaves in a folder: of a comparison or check, of a replay."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="DIR|FILE",
        help="a trace, or two to compare; a folder that --keep left; a JSON object of compare, check or bisect; "
        "or a page that --html wrote",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page to FILE (default: a temporary file)")


def run(args: argparse.Namespace) -> Result:
    """Make the page, and open it where there is a browser."""
    if len(args.paths) > 2:
        raise UsageError("usage", "view shows one report, or two traces; see: opguard view --help")
    given = Path(args.paths[0])
    file = given if given.suffix == ".html" and len(args.paths) == 1 else _written(args)
    if not file.is_file():
        raise UsageError("not-a-report", f"{file} does not exist.")
    opened = _opens(file)
    document = {"schema": 1, "verdict": "ok", "file": str(file), "opened": opened}
    said = "opened in the browser" if opened else "there is no browser here; open it where there is one"
    return Result(document, (Line(f"{file}: {said}"),), 0)


def _written(args: argparse.Namespace) -> Path:
    try:
        text = _page([Path(path) for path in args.paths])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError("not-a-report", f"{args.paths[0]} is no object that opguard_ci printed ({why}).") from None
    if args.output is None:
        descriptor, name = tempfile.mkstemp(prefix="opguard-", suffix=".html")
        os.close(descriptor)
    else:
        name = args.output
    write_report(name, text)
    return Path(name)


def _opens(file: Path) -> bool:
    """Open a file in a browser; not in one that would take the terminal."""
    is_graphic = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    return is_graphic and webbrowser.open(file.resolve().as_uri())


def _page(paths: list[Path]) -> str:
    from opguard_ci.report.html import bisect_page, check_page, compare_page

    document = _compared(paths) if len(paths) == 2 or paths[0].is_dir() else _loaded(paths[0])
    if "results" in document:
        pictures = [(picture_of(result), picture_of(result.get("bisect") or {})) for result in document["results"]]
        return check_page(document, pictures, strict=False)
    if "first_bad" in document:
        return bisect_page(document, picture_of(document))
    return compare_page(document, picture_of(document))


def _loaded(file: Path) -> dict[str, Any]:
    """The object in a file: what a verb printed, or a trace by its manifest."""
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError("not-a-report", f"{file} cannot be read: {error.strerror}.") from error
    if isinstance(document, dict) and {"steps", "scheme"} <= document.keys():
        return _compared([file])
    if not isinstance(document, dict) or document.get("verdict") not in EXIT_CODES:
        raise UsageError("not-a-report", f"{file} holds no report.")
    return document


def _compared(paths: list[Path]) -> dict[str, Any]:
    """The object about two traces; about one, what it shows by itself."""
    from opguard_ci.compare import compare_traces
    from opguard_ci.trace.reader import read_trace

    if len(paths) == 1 and not (paths[0] / "manifest.json").exists():
        paths = _kept(paths[0])
    traces = [read_trace(path) for path in paths]
    if len(traces) == 1:
        return _alone(paths[0])
    document = compare_traces(*traces).to_json()
    for side, path in zip(("reference", "candidate"), paths, strict=True):
        document[side]["trace"] = str(path)
    return {**document, "target": traces[1].manifest["target"], "profile": traces[1].manifest["profile"]}


def _kept(folder: Path) -> list[Path]:
    """The two traces in a folder, or in the only one of its folders that holds two."""
    if not folder.is_dir():
        return [folder]
    found = [
        [place / name for name in names]
        for place in (folder, *sorted(each for each in folder.iterdir() if each.is_dir()))
        for names in _PAIRS
        if all((place / name / "manifest.json").exists() for name in names)
    ]
    if len(found) != 1:
        if not found:
            raise UsageError("not-a-report", f"{folder} is no trace, and holds no pair of them; name two traces.")
        places = ", ".join(str(pair[0].parent) for pair in found[:10])
        raise UsageError("not-a-report", f"{folder} holds several pairs of traces; name one of {places}.")
    return found[0]


def _alone(path: Path) -> dict[str, Any]:
    from opguard_ci.compare import single_run_findings
    from opguard_ci.trace.reader import read_trace

    trace = read_trace(path)
    manifest, findings = trace.manifest, single_run_findings(trace)
    error = manifest["outcome"] if (manifest["outcome"] or {}).get("status") == "untestable" else None
    verdict = "untestable" if error else "findings" if findings else "ok"
    named = {key: manifest[key] for key in ("target", "profile", "level", "coverage", "notes")}
    return {"schema": 1, "verdict": verdict, **named, "trace": str(path), "findings": findings, "error": error}
