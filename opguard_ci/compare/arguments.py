"""Argument texts: taken apart, and what changed between two of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator


def split_arguments(text: str) -> dict[str, str]:
    """``self=%0, dim=[0, 1], eps=1e-05`` as a mapping from name to text; commas in brackets and quotes do not split."""
    return dict(_pieces(text))


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    depth, start, quote = 0, 0, ""
    for position, char in enumerate(text + ","):
        if quote:
            if char == quote and text[position - 1] != "\\":
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "[({":
            depth += 1
        elif char in "])}":
            depth -= 1
        elif char == "," and depth == 0:
            name, _, value = text[start:position].strip().partition("=")
            if name:
                yield name, value
            start = position + 1


def changed_arguments(before: str, after: str) -> str:
    """``eps 1e-05 -> 1e-06`` for every argument that differs."""
    old, new = split_arguments(before), split_arguments(after)
    names = [*old, *(name for name in new if name not in old)]
    changes = [f"{n} {old.get(n, '(absent)')} -> {new.get(n, '(absent)')}" for n in names if old.get(n) != new.get(n)]
    return ", ".join(changes)


def argument_name(args: str, number: int) -> str:
    """The name of tensor argument ``number`` in an argument text: ``self``, or ``tensors[1]`` within a list."""
    wanted = f"%{number}"
    for name, text in split_arguments(args).items():
        if text == wanted:
            return name
        items = text.strip("[]").split(", ")
        if wanted in items:
            return f"{name}[{items.index(wanted)}]"
    return f"tensor {number}"
