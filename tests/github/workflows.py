"""Reads the workflows of this repository far enough to check and run them; no YAML parser is needed for that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github").rglob("*.yml"))
_RUN = re.compile(r"^(\s*)(?:- )?run: (.*)$")
_NAME = re.compile(r"^\s*- name: (.*)$")


@dataclass(frozen=True)
class Script:
    """A ``run:`` script of ours."""

    file: str
    step: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return self.file, self.step


def scripts() -> list[Script]:
    """All scripts of all workflows and actions."""
    return [script for file in FILES for script in _scripts(file)]


def script(file: str, step: str) -> str:
    """The text of one of them."""
    (found,) = [each.text for each in scripts() if each.key == (file, step)]
    return found


def _scripts(file: Path) -> Iterator[Script]:
    step, lines = "", file.read_text().splitlines()
    for number, line in enumerate(lines):
        if name := _NAME.match(line):
            step = name[1]
        if not (found := _RUN.match(line)):
            continue
        text = found[2]
        if text == "|":
            indent = len(found[1]) + 2
            block = []
            for later in lines[number + 1 :]:
                if later.strip() and not later.startswith(" " * indent):
                    break
                block.append(later[indent:])
            text = "\n".join(block)
        yield Script(file.name, step, text + "\n")
