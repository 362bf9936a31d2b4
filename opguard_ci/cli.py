"""The command line: finds the verb, and turns every way to end into one report and one exit code."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from opguard_ci.commands import VERBS, Result
from opguard_ci.errors import OpguardError, UntestableError, UsageError
from opguard_ci.report.terminal import Output, open_standard_streams
from opguard_ci.report.text import error_lines

_EXIT_CODES: Final = """\
exit codes:
  0  identical, equivalent, ok, findings, found
  1  diverged (compare and check --strict: also equivalent)
  2  the request makes no sense as given, or is refused
  3  environment, no-reference, or two sides that cannot be compared
  4  unstable, untestable; of a bisection candidates, nothing
  5  a defect of opguard_ci (a file to attach is named)

Arguments after -- are the target's own: opguard run train.py -o runs/a -- --lr 0.1
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv`` unless given) and return its exit code."""
    open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    split = words.index("--") if "--" in words else len(words)
    own, target_arguments = words[:split], tuple(words[split + 1 :])
    with Output(as_json="--json" in own) as output:
        result = _outcome(own, target_arguments)
        return output.emit(result.document, result.text, result.exit_code)


def _outcome(own: list[str], target_arguments: tuple[str, ...]) -> Result:
    args = argparse.Namespace()
    try:
        if sys.platform == "win32":
            raise UsageError("platform", "opguard_ci runs on Linux and macOS; on Windows, use it inside WSL")
        _parser().parse_args(own, args)
        if target_arguments and not hasattr(args, "target"):
            raise UsageError("usage", f"opguard {args.verb} takes no arguments after --: only a target has its own")
        args.target_arguments = target_arguments
        result: Result = args.run(args)
        return result
    except OpguardError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return _interrupted(getattr(args, "output", None))
    except Exception as error:
        from opguard_ci.report.crash import write_crash_file

        return _failed(OpguardError("internal", write_crash_file(error, own)))


def _failed(error: OpguardError) -> Result:
    document: dict[str, Any] = error.to_json()
    if isinstance(error, UntestableError) and error.traceback:
        document["error"]["traceback"] = error.traceback
    return Result(document, error_lines(document), error.exit_code)


def _interrupted(folder: str | None) -> Result:
    message = "interrupted"
    if folder is not None and (Path(folder) / "manifest.json").exists():
        message += f"; the steps captured so far can be read with: opguard show {folder}"
    document = {"schema": 1, "verdict": "error", "error": {"slug": "interrupted", "message": message}}
    return Result(document, error_lines(document), 130)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ours: one sentence, and an object under ``--json``."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown words where the verb is known."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            import difflib

            near = difflib.get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", f"{message}; see: {self.prog} --help")


class _Version(argparse.Action):
    """Prints the version of the installed package; looks it up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from opguard_ci.report.crash import installed_version

        print(f"opguard_ci {installed_version('opguard-ci')}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="opguard",
        description="CI and regression tests for the determinism of PyTorch training.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    for name in VERBS:
        verb = importlib.import_module(f"opguard_ci.commands.{name}")
        sub = verbs.add_parser(verb.NAME, help=verb.HELP, description=verb.HELP, allow_abbrev=False)
        verb.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object, and the text to stderr")
        sub.set_defaults(run=verb.run)
    return parser
