"""Code that torch.compile compiled more than once, in words.

A run in which shapes vary may use another graph in each step, and so may two runs that differ in a shape: whoever reads
a verdict on compiled code should know. Dynamo tells a hook what it compiled, and keeps why a graph did not fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import CodeType
from typing import Final

_MAX_REASONS: Final = 3
_MAX_LENGTH: Final = 160
_RESUMED: Final = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


def count_compilations(stack: ExitStack, note: Callable[[str], None], shown: Callable[[str], str]) -> None:
    """Until ``stack`` closes, count what is compiled; then ``note`` a sentence for each code that was more than once.

    ``shown``: a file's path as a reader should see it.
    """
    from torch._dynamo.convert_frame import register_bytecode_hook
    from torch._dynamo.utils import guard_failures

    counts: Counter[CodeType] = Counter()

    def compiled(code: CodeType, new_code: CodeType) -> None:
        counts[code] += 1

    def tell() -> None:
        for code, count in counts.items():
            if count > 1:
                note(sentence(shown(code.co_filename), code, count, guard_failures.get(code, ())))

    stack.callback(tell)
    stack.callback(register_bytecode_hook(compiled).remove)


def sentence(path: str, code: CodeType, count: int, failures: Iterable[str]) -> str:
    """What is said of a code. ``failures``: of the guards of its graphs, in dynamo's words."""
    resumed = _RESUMED.fullmatch(code.co_name)
    name = f"{resumed[1]}, from a graph break on," if resumed else code.co_name
    reasons = [reason for reason in dict.fromkeys(map(_reason, failures)) if reason]
    more = len(reasons) - _MAX_REASONS
    text = "; ".join(reasons[:_MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")
    return f"{path}:{code.co_firstlineno} {name} was compiled {count} times" + (f": {text}." if text else ".")


def _reason(failure: str) -> str:
    """The first line of a failure, without the number of the graph, the source line, hints, and addresses."""
    line = failure.strip().partition("\n")[0]
    line = re.sub(r"^\d+/\d+: ", "", line)
    line = re.split(r"\s+# | \(HINT", line)[0]
    return re.sub(r"\d{9,}", "…", line).rstrip(". ")[:_MAX_LENGTH]
