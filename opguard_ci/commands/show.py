"""``opguard show``: small questions to a trace of any size."""

from __future__ import annotations

import argparse
import re
from typing import Final

from opguard_ci.commands import Result
from opguard_ci.commands.options import at_least
from opguard_ci.report.clean import clean_lines
from opguard_ci.report.layout import Line

NAME: Final = "show"
HELP: Final = "answer small questions about a trace: a summary, some events, their tensors, their source lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.add_argument("trace", metavar="TRACE", help="trace folder, manifest or golden")
    parser.add_argument(
        "--events", type=_range, metavar="A..B", help="the events with these numbers, both ends included"
    )
    parser.add_argument(
        "--search", metavar="TEXT", help="events with TEXT in operator, module, arguments, stack or value"
    )
    parser.add_argument("--source", type=_source, metavar="FILE:LINE", help="events that this line of source called")
    parser.add_argument("--tensors", action="store_true", help="with the tensors of each event, and its whole stack")
    parser.add_argument("--rank", type=at_least(0), default=0, metavar="N", help="of a distributed run (default: 0)")
    parser.add_argument("--limit", type=at_least(1), metavar="N", help="at most N events (default: 50)")


def run(args: argparse.Namespace) -> Result:
    """Read what was asked for."""
    from opguard_ci.trace import query
    from opguard_ci.trace.reader import read_trace

    document = query.show(
        read_trace(args.trace),
        events=args.events,
        search=args.search,
        tensors=args.tensors,
        source=args.source,
        limit=args.limit or query.LIMIT,
        rank=args.rank,
    )
    text = tuple(Line(line) for line in clean_lines(query.render(document), limit=100_000))
    return Result(document, text, 0)


def _range(text: str) -> range:
    match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of event numbers such as 100..120")
    first = int(match[1])
    last = int(match[2] or match[1])
    if last < first:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return range(first, last + 1)


def _source(text: str) -> tuple[str, int]:
    file, _, line = text.rpartition(":")
    if not file or not re.fullmatch(r"\d{1,9}", line, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not FILE:LINE, such as model.py:88")
    return file, int(line)
