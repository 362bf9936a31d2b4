"""The manifest: a broken key is named, and every key and column is documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.errors import IncomparableError
from opguard_ci.trace.columns import ARROW_SCHEMA, READ, WRITE
from opguard_ci.trace.digest import SECTIONS
from opguard_ci.trace.manifest import NotAManifest, parse
from tests.trace.folders import manifest


def encoded(**changes: Any) -> bytes:
    return json.dumps(manifest(**changes)).encode()


def test_a_good_manifest_comes_back() -> None:
    """With keys that this version does not know: a golden's, for one."""
    assert parse(encoded(why="new kernel")) == manifest(why="new kernel")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "1"),
        ("schema", True),
        ("target", None),
        ("argv", [1]),
        ("commit", 7),
        ("environment", {"key": 1}),
        ("environment", {"key": "k", "document": []}),
        ("scheme", ""),
        ("scheme", "x\n"),
        ("ranks", 0),
        ("ranks", True),
        ("ranks", 10**9),
        ("coverage", {"hashed": "all"}),
        ("steps", [{"step": 0}]),
        ("steps", [{"step": 0, "events": 1, "digests": {"loss": "zz"}}]),
        ("steps", [{"step": 0, "events": 1, "digests": {"operators": {"forward": 1}}}]),
        ("objects", {"../../etc/passwd": {"sha256": "0" * 64, "bytes": 1}}),
        ("objects", {"events-0.arrows": {"sha256": "../x", "bytes": 1}}),
        ("objects", {"events-0.arrows": {"sha256": "0" * 64, "bytes": -1}}),
        ("complete", 1),
        ("outcome", []),
        ("findings", ["text"]),
        ("notes", [{}]),
    ],
)
def test_a_broken_key_is_named(key: str, value: Any) -> None:
    """ValueError, with the key at its start."""
    with pytest.raises(ValueError, match=f"^{key}"):
        parse(encoded(**{key: value}))


@pytest.mark.parametrize("key", ["target", "environment", "scheme", "ranks", "steps", "complete"])
def test_keys_that_must_be_there(key: str) -> None:
    """Without them nothing can be compared."""
    document = manifest()
    del document[key]
    with pytest.raises(ValueError, match=f"^{key} is missing"):
        parse(json.dumps(document).encode())


def test_a_later_schema_is_not_judged_by_our_rules() -> None:
    """Its keys may be others; only the version is named."""
    with pytest.raises(IncomparableError, match="schema"):
        parse(b'{"schema": 2}')


@pytest.mark.parametrize("data", [b"", b"[]", b'"x"', b"{}", b"[" * 200_000, b'{"schema": Infinity}', b"\xff\xfe"])
def test_other_files_are_no_manifests(data: bytes) -> None:
    """They are told from a broken manifest."""
    with pytest.raises(NotAManifest):
        parse(data)


def test_the_documentation_has_every_key_and_column() -> None:
    """docs/trace.md names all that a trace holds."""
    text = (Path(__file__).parents[2] / "docs" / "trace.md").read_text(encoding="utf-8")
    names = [*manifest(), *ARROW_SCHEMA.names, *SECTIONS, *SECTIONS.values(), "data", "operators"]
    names += [item.name for struct in (READ, WRITE) for item in struct]
    assert [name for name in names if f"`{name}`" not in text] == []
