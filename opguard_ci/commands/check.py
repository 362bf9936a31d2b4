"""``opguard check``: what CI runs. Compares targets with the references that count, and reports in every form."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opguard_ci.commands import EXIT_CODES, Result, exit_code
from opguard_ci.commands.html import add_html_option, picture_of, refuse_unwritable, write_report
from opguard_ci.commands.options import add_window_options
from opguard_ci.commands.run import refuse_used_folder, refuse_without_terminal
from opguard_ci.commands.targets import add_target_options, wanted_jobs
from opguard_ci.errors import IncomparableError, OpguardError, UntestableError, UsageError
from opguard_ci.report.check import failed, is_skipped, render_check
from opguard_ci.report.layout import Line
from opguard_ci.report.progress import steps_shown

if TYPE_CHECKING:
    from opguard_ci.guard import Project
    from opguard_ci.worker.commits import Commits
    from opguard_ci.worker.places import Job

NAME: Final = "check"
HELP: Final = "compare what targets compute now with a commit or with their goldens"

_MISSING: Final = ("fail", "reference", "skip")
_WORST_FIRST: Final = (5, 1, 4, 3, 0)
_SUMMARY: Final = "GITHUB_STEP_SUMMARY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    add_target_options(parser)
    add_window_options(parser)
    parser.add_argument("--reference", metavar="COMMIT", help="run this commit again, and compare with it")
    parser.add_argument(
        "--missing",
        choices=_MISSING,
        help="without a golden: fail, skip, or run the newest golden's commit or the merge base as the reference",
    )
    parser.add_argument("--strict", action="store_true", help="let equivalent recipes fail, too")
    parser.add_argument(
        "--bisect", action="store_true", help="go on to the commit that changed what diverged, and its hunks"
    )
    parser.add_argument("--junit", metavar="FILE", help="write a JUnit report")
    add_html_option(parser)
    parser.add_argument("--github", action="store_true", help="write annotations and the job summary of GitHub Actions")
    parser.add_argument(
        "--keep", metavar="DIR", help="leave the traces of what failed in DIR (not of a golden, which is one)"
    )
    parser.add_argument("--repro", metavar="DIR", help="leave scripts in DIR that repeat the operators that diverged")
    parser.add_argument("--in-process", action="store_true", help="run the one TARGET in this process, for a debugger")
    parser.add_argument(
        "--pdb",
        action="store_true",
        help="run what diverged again, and stop it live at the operator in a debugger; what raised, where it did",
    )


def run(args: argparse.Namespace) -> Result:
    """Check every target; the worst result decides."""
    from opguard_ci.guard import Project
    from opguard_ci.report.html import check_page

    if args.github and not os.environ.get(_SUMMARY):
        raise UsageError("no-step-summary", f"--github needs {_SUMMARY}, which GitHub Actions sets in every step.")
    if args.keep is not None:
        refuse_used_folder(args.keep)
    if args.repro is not None:
        refuse_used_folder(args.repro)
    refuse_unwritable(args.html)
    with Project(Path.cwd(), golden=args.golden, runs=_runs(args)) as project:
        root = project.root
        with _no_commands_of_others(args.github), steps_shown() as progress:
            results = []
            for job in _jobs(args, project):
                progress(f"checking {job.target}")
                results.append(_checked(project, job, args))
        pictures = [] if args.html is None else [_pictures(result) for result in results]
        if args.keep is not None:
            _keep_traces(results, Path(args.keep), args.strict)
    _forget_traces(results)  # the scratch folder is gone now
    worst = min(results, key=lambda result: _rank(result, args.strict))
    document: dict[str, Any] = {"schema": 1, "verdict": worst["verdict"], "results": results}
    if args.junit is not None:
        _write_junit(document, Path(args.junit), args.strict)
    if args.html is not None:
        write_report(args.html, check_page(document, pictures, strict=args.strict))
    text = render_check(document, strict=args.strict)
    if args.github:
        text = _for_github(document, text, root, args.strict)
    return Result(document, text, _exit(worst, args.strict))


def _runs(args: argparse.Namespace) -> type[Commits]:
    """How the working tree is run."""
    if args.in_process:
        from opguard_ci.worker.in_process import InProcess

        return InProcess
    from opguard_ci.worker.commits import Commits

    return Commits


def _jobs(args: argparse.Namespace, project: Project) -> list[Job]:
    """What is checked; refuses what a debugger cannot be used for."""
    jobs = wanted_jobs(args, project)
    ranks = [project.commits.places.ranks(job) for job in jobs]
    if args.in_process and len(jobs) > 1:
        raise UsageError("usage", f"--in-process is for a debugger: name one TARGET, not {len(jobs)}.")
    if args.in_process and ranks != [1]:
        raise UsageError("ranks-in-process", f"{jobs[0].target} runs in {ranks[0]} ranks: leave out --in-process.")
    if args.pdb:
        refuse_without_terminal(args, max(ranks))
    return jobs


def _pictures(result: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What the page draws of a result and of its bisection."""
    return picture_of(result), picture_of(result.get("bisect") or {})


def _checked(project: Project, job: Job, args: argparse.Namespace) -> dict[str, Any]:
    """The result of one target; what went wrong with it alone is a result, too."""
    from opguard_ci.evidence.live import stop_checked
    from opguard_ci.guard import check
    from opguard_ci.reference import Wanted
    from opguard_ci.report.crash import write_crash_file
    from opguard_ci.store.recipes import recipe_id, relative_target

    try:
        repro = None if args.repro is None else Path(args.repro)
        found = check(project, job, Wanted(args.reference, args.missing), repro=repro)
        document = found.document
        if document["verdict"] == "diverged":
            _lead_on(project, job, document, args)
        elif document["verdict"] == "no-reference":
            elsewhere = "" if args.golden is None else f"--golden {shlex.quote(args.golden)} "
            document["command"] = f"opguard bless {elsewhere}{_target_words(job)} --reason TEXT"
            if args.golden is not None and not Path(args.golden).is_dir():
                document["notes"].append(f"{args.golden}, which --golden names, is no folder.")
        if args.pdb:
            stop_checked(project.commits, job, document)
        return document
    except UsageError:
        raise
    except OpguardError as error:
        failure = error
    except Exception as error:
        failure = OpguardError("internal", write_crash_file(error, ["check", job.target]))
    verdict = "error"
    if isinstance(failure, UntestableError):
        verdict = "untestable"
    elif isinstance(failure, IncomparableError):
        verdict = "no-reference"
    named = {"recipe": recipe_id(job.target, job.cwd, str(project.root)), "reference": {"kind": None}}
    target = relative_target(job.target, job.cwd, str(project.root))
    return {**named, "target": target, **failure.to_json(), "verdict": verdict}


def _lead_on(project: Project, job: Job, document: dict[str, Any], args: argparse.Namespace) -> None:
    """Name the command that finds the commit, and run it if that was asked for."""
    good = _good_end(project, document)
    if good is None:
        document["notes"].append("The golden's commit is gone, so there is no good end for a bisection.")
        return
    head, changed = project.repository.head(), project.commits.changed()
    given = {"--profile": args.profile, "--from-step": job.from_step, "--to-step": job.to_step}
    options = [str(word) for name, value in given.items() if value is not None for word in (name, value)]
    words = ["opguard", "bisect", "--good", good, "--bad", "HEAD" if changed else head, *options]
    document["command"] = f"{shlex.join(words)} {_target_words(job)}"
    if changed:
        document["notes"].append("The working tree has changes: commit them before a bisection can look at them.")
    if args.bisect:
        document["bisect"] = _bisected(project, job, good, head)


def _good_end(project: Project, document: dict[str, Any]) -> str | None:
    reference = document["reference"]
    if reference["kind"] == "commit":
        return str(reference["commit"])
    golden = project.goldens.find(document["recipe"], reference["environment"])
    return None if golden is None else project.references.commit_of(golden)


def _bisected(project: Project, job: Job, good: str, bad: str) -> dict[str, Any]:
    from opguard_ci.bisect.driver import BisectOptions, bisect

    try:
        with steps_shown() as progress:
            return bisect(project, job, good, bad, BisectOptions(hunks=True, progress=progress))
    except OpguardError as error:
        return error.to_json()


def _target_words(job: Job) -> str:
    """The target as it is named from where the user is, with its own arguments."""
    path, colon, function = job.target.rpartition(":") if ":" in job.target else (job.target, "", "")
    if path.endswith(".py") and Path(job.cwd) != Path.cwd():
        path = os.path.relpath(Path(job.cwd, path))
    target = f"{path}{colon}{function}"
    return shlex.join([target, "--", *job.argv]) if job.argv else shlex.quote(target)


def _exit(result: dict[str, Any], strict: bool) -> int:
    if is_skipped(result):
        return 0
    return exit_code(result["verdict"], strict=strict) if result["verdict"] in EXIT_CODES else 5


def _rank(result: dict[str, Any], strict: bool) -> tuple[int, bool, bool]:
    """Worse results come first; among those that pass, one that says more about the target."""
    return _WORST_FIRST.index(_exit(result, strict)), is_skipped(result), result["verdict"] == "identical"


def _keep_traces(results: Sequence[dict[str, Any]], folder: Path, strict: bool) -> None:
    """Copy the traces of what failed out of the scratch folder, and name the copies."""
    for result in results:
        if not failed(result, strict):
            continue
        for side in ("reference", "candidate"):
            trace = (result.get(side) or {}).get("trace")
            if trace is not None and Path(trace).is_dir():
                place = folder / result["recipe"] / side
                shutil.copytree(trace, place)
                result[side]["trace"] = str(place)


def _forget_traces(results: Sequence[dict[str, Any]]) -> None:
    """Take out of the report what is not there any more when it is read."""
    for result in results:
        for side in ("reference", "candidate"):
            trace = (result.get(side) or {}).get("trace")
            if trace is not None and not Path(trace).exists():
                del result[side]["trace"]


def _write_junit(document: dict[str, Any], file: Path, strict: bool) -> None:
    from opguard_ci.report.junit import cases_of, junit_xml

    _write(file, junit_xml(cases_of(document, strict=strict)), "w")


def _for_github(document: dict[str, Any], text: tuple[Line, ...], root: Path, strict: bool) -> tuple[Line, ...]:
    """Write the job summary; the text between markers that keep it from being commands, then the annotations."""
    from opguard_ci.report.github import error_commands, resume_commands, stop_commands, summary

    _write(Path(os.environ[_SUMMARY]), summary(document, strict=strict), "a")
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or root).resolve()
    below = root.resolve().is_relative_to(workspace) and root.resolve() != workspace
    prefix = f"{root.resolve().relative_to(workspace)}/" if below else ""
    token = secrets.token_hex(16)
    commands = [Line(command) for command in error_commands(document, prefix, strict=strict)]
    return (Line(stop_commands(token)), *text, Line(resume_commands(token)), *commands)


@contextmanager
def _no_commands_of_others(wanted: bool) -> Iterator[None]:
    """Keep what targets print from being workflow commands."""
    from opguard_ci.report.github import resume_commands, stop_commands

    if not wanted:
        yield
        return
    token = secrets.token_hex(16)
    print(stop_commands(token), flush=True)
    try:
        yield
    finally:
        print(f"\n{resume_commands(token)}", flush=True)


def _write(file: Path, text: str, mode: str) -> None:
    try:
        with file.open(mode, encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise UsageError("report-unwritable", f"The report {file} cannot be written: {error.strerror}.") from error
