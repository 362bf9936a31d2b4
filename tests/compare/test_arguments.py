"""Argument texts are taken apart and put side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.compare.arguments import argument_name, changed_arguments, split_arguments

_NAMES = st.text("abcdefgh_", min_size=1, max_size=6)
_TEXTS = st.one_of(
    st.integers().map(repr),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(["None", "%0", "[%0, %1]", "[0, [1, 2]]", "{'a': (1, 2)}", "'a, b=3'", "'it\\'s, so'", "float32"]),
)


@given(st.dictionaries(_NAMES, _TEXTS))
def test_split_gives_back_what_was_joined(arguments: dict[str, str]) -> None:
    """Commas and equals signs in brackets and quotes do not split."""
    text = ", ".join(f"{name}={value}" for name, value in arguments.items())
    assert split_arguments(text) == arguments


@given(st.dictionaries(_NAMES, _TEXTS), st.dictionaries(_NAMES, _TEXTS))
def test_changes_name_what_differs(before: dict[str, str], after: dict[str, str]) -> None:
    """Nothing is said about equal arguments, and every other one is named."""
    texts = [", ".join(f"{name}={value}" for name, value in side.items()) for side in (before, after)]
    said = changed_arguments(*texts)
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    assert all(f"{name} {before.get(name, '(absent)')} -> {after.get(name, '(absent)')}" in said for name in differing)
    assert (said == "") == (not differing)


def test_one_changed_argument() -> None:
    """The usual case reads as a phrase."""
    before, after = "input=%0, eps=1e-05, dim=[0, 1]", "input=%0, eps=1e-06, dim=[0, 1]"
    assert changed_arguments(before, after) == "eps 1e-05 -> 1e-06"


@pytest.mark.parametrize(
    ("args", "number", "name"),
    [
        ("input=%0, weight=%1, eps=1e-05", 1, "weight"),
        ("tensors=[%0, %1], dim=1", 0, "tensors[0]"),
        ("tensors=[%0, %1, %2], dim=1", 1, "tensors[1]"),
        ("tensors=[%0, %1, %2], dim=1", 2, "tensors[2]"),
        ("self=[%0], other=%10", 1, "tensor 1"),
        ("self=%0, indices=[None, %1]", 1, "indices[1]"),
        ("", 0, "tensor 0"),
    ],
)
def test_names_of_tensor_arguments(args: str, number: int, name: str) -> None:
    """By the argument that holds the tensor, also in the midst of a list."""
    assert argument_name(args, number) == name
