from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.cli.command import ROOT

CONSTRUCTORS = (
    "OpguardError", "UsageError", "IncomparableError", "UntestableError", "CannotZoomError", "__init__", "_failure"
)  # fmt: skip

INDIRECT = {"crashed", "killed", "timeout", "other-scheme", "other-ranks"}
"""Slugs that are chosen by how a process ended, or put together from the name of a field."""


def slugs_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            first = node.args[0]
            if name in CONSTRUCTORS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "slug" and isinstance(value, ast.Constant):
                    yield value.value


def used() -> set[str]:
    files = [*(ROOT / "opguard_ci").rglob("*.py"), *(ROOT / "pytest_opguard").rglob("*.py")]
    return INDIRECT | {slug for file in files for slug in slugs_in(file)}


def documented() -> list[str]:
    return re.findall(r"^### (\S+)$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)


def test_every_slug_has_a_section() -> None:
    """Whoever gets an error finds its cause and cure in docs/errors.md."""
    assert used() - set(documented()) == set()


def test_every_section_has_a_slug() -> None:
    """docs/errors.md describes no error that is gone, and none twice."""
    assert set(documented()) - used() == set()
    assert len(documented()) == len(set(documented()))


def test_slugs_are_words() -> None:
    """A slug is lower-case words with hyphens, so that it works as a heading's link."""
    assert [slug for slug in used() if not re.fullmatch(r"[a-z]+(-[a-z]+)*", slug)] == []
