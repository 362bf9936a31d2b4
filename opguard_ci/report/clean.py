"""Makes text of unknown origin safe for a terminal: names, source lines and paths come from whoever wrote the trace."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and other strings: window titles, links
    r"|\x1b[ -/]*[0-~]?"  # two-character sequences, and a lone escape
    r"|\x9b[0-?]*[ -/]*[@-~]",  # CSI as one C1 character
    re.DOTALL,
)
_BLANK: Final = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
_REMOVED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Categories of controls, bidi and zero-width marks, surrogates, private and unassigned characters."""


def clean(value: object, limit: int = 400) -> str:
    """Make ``value`` one line of printable characters, cut to ``limit`` characters with an ellipsis."""
    text = value if isinstance(value, str) else str(value)
    if not (text.isascii() and text.isprintable()):
        text = _BLANK.sub(" ", _ESCAPES.sub("", text[: 8 * limit]))
        text = "".join(letter for letter in text if unicodedata.category(letter) not in _REMOVED)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clean_lines(text: str, limit: int = 200) -> list[str]:
    """Split ``text`` (a traceback) into cleaned lines, indented as before, without the middle beyond ``limit``."""
    lines = [clean(line.expandtabs(4)) for line in text.splitlines()]
    if len(lines) > limit:
        half = limit // 2
        lines[half:-half] = [f"… {len(lines) - 2 * half} lines left out …"]
    return lines
