"""``opguard demo``: builds a small training project, changes it, and finds the operator that the change reached."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.commands import Result
from opguard_ci.commands.options import at_least
from opguard_ci.commands.run import refuse_used_folder
from opguard_ci.errors import UntestableError
from opguard_ci.report.layout import Line, paragraph, title
from opguard_ci.report.text import render

if TYPE_CHECKING:
    from opguard_ci.demo.changes import Planted

NAME: Final = "demo"
HELP: Final = "build a small training project, change one line of it, and find what the change did"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="picks the change: 0, 1, 2, … go through all kinds"
    )
    parser.add_argument("--keep", metavar="DIR", help="leave project and traces in DIR (default: they are removed)")


def run(args: argparse.Namespace) -> Result:
    """Capture the project as it was and as it is, and compare; 0 only if the verdict names what was planted."""
    from opguard_ci.demo.changes import plant

    with ExitStack() as stack:
        if args.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opguard-demo-")))
        else:
            refuse_used_folder(args.keep)
            folder = Path(args.keep).absolute()
        planted = plant(args.seed)
        document = compare_versions(planted, folder)
    found = planted.is_found_in(document)
    document["planted"] = {
        "op": planted.change.op,
        "kind": planted.change.kind,
        "file": planted.change.file,
        "line": planted.line,
    }
    if args.keep is not None:
        for side, name in (("reference", "before"), ("candidate", "after")):
            document[side]["trace"] = str(Path(args.keep) / f"trace-{name}")
    return Result(
        document, (*_introduction(planted), *render(document), *_conclusion(planted, found)), 0 if found else 1
    )


def compare_versions(planted: Planted, folder: Path) -> dict[str, Any]:
    """Write the project before and after its change, run both under capture, and compare the traces."""
    from opguard_ci.compare import compare_traces
    from opguard_ci.trace.reader import read_trace

    traces = {
        name: _capture(files, folder / name, folder / f"trace-{name}")
        for name, files in (("before", planted.files_before), ("after", planted.files_after))
    }
    return compare_traces(read_trace(traces["before"]), read_trace(traces["after"])).to_json()


def _capture(files: dict[str, str], project: Path, trace: Path) -> Path:
    from opguard_ci.demo.changes import TARGET
    from opguard_ci.worker import client
    from opguard_ci.worker.request import RunRequest

    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    result = client.run(RunRequest(TARGET, cwd=str(project), output=str(trace), root=str(project)))
    if result.status != "ok":
        outcome = result.outcome
        raise UntestableError(outcome["slug"], outcome["message"], outcome.get("traceback", ""))
    return trace


def _introduction(planted: Planted) -> list[Line]:
    change = planted.change
    lines = [Line(f"Planted in {change.file}, line {planted.line}: {change.kind}", "title")]
    lines += [Line(f"  - {line.strip()}") for line in planted.removed]
    lines += [Line(f"  + {line.strip()}") for line in planted.added]
    return [*lines, Line("")]


def _conclusion(planted: Planted, found: bool) -> list[Line]:
    if planted.change.op is None:
        said = f"a refactor had to pass, and {'does' if found else 'does not'}"
    else:
        wanted = " or ".join(op for op in (planted.change.op, planted.change.partner) if op)
        said = f"{wanted} had to be named, and {'is' if found else 'is not'}"
    return [*title("Demo"), *paragraph(said, style="good" if found else "bad")]
