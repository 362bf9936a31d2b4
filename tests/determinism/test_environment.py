from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.determinism.environment import PINNED_AWAY, RECORDED_ONLY, diff, environment_key, keyed_fields

names = st.sampled_from([*sorted(PINNED_AWAY | RECORDED_ONLY), "torch", "threads.intra_op", "package.numpy", "flag.x"])
documents = st.dictionaries(names, st.text(st.characters(exclude_characters="\0"), max_size=6))

DOCUMENT = {
    "cpu.model": "Xeon",
    "cpu.family": "GenuineIntel family 6 model 143",
    "cpu.cores": "8",
    "torch": "2.13.0",
    "threads.intra_op": "1",
    "package.numpy": "2.4.6",
}


@given(documents, documents)
def test_keys_differ_exactly_when_a_keyed_field_does(a: dict[str, str], b: dict[str, str]) -> None:
    """The key is a function of the fields that it covers, and of nothing else."""
    for profile in ("strict", "portable", "observe"):
        same = keyed_fields(a, profile) == keyed_fields(b, profile)
        assert (environment_key(a, profile) == environment_key(b, profile)) == same


@given(documents)
def test_the_order_of_a_document_does_not_matter(document: dict[str, str]) -> None:
    """A document read back in another order has the same key."""
    backwards = dict(reversed(document.items()))
    assert environment_key(document, "strict") == environment_key(backwards, "strict")
    assert len(environment_key(document, "strict")) == 16


@given(documents, documents)
def test_diff_has_a_line_for_each_difference(a: dict[str, str], b: dict[str, str]) -> None:
    """Equal documents have no differences, and each field that differs has one line."""
    assert len(diff(a, b)) == sum(a.get(name) != b.get(name) for name in a.keys() | b.keys())


def test_portable_holds_on_another_machine() -> None:
    """Another CPU of the same architecture is another key under strict and the same under portable."""
    other = {**DOCUMENT, "cpu.model": "EPYC", "cpu.family": "AuthenticAMD family 25 model 17", "cpu.cores": "64"}
    assert environment_key(DOCUMENT, "strict") != environment_key(other, "strict")
    assert environment_key(DOCUMENT, "portable") == environment_key(other, "portable")
    assert environment_key(DOCUMENT, "portable") != environment_key({**other, "torch": "2.14.0"}, "portable")


def test_diff_speaks_in_words() -> None:
    """Fields have names for people; what does not count is said to, and stands last."""
    other = {**DOCUMENT, "cpu.model": "EPYC", "torch": "2.14.0", "cpu.cores": "64", "package.scipy": "1.15"}
    assert diff(DOCUMENT, other) == [
        "usable CPU cores: 8 -> 64 (not part of the key under portable)",
        "package scipy: absent -> 1.15",
        "torch: 2.13.0 -> 2.14.0",
        "CPU model: Xeon -> EPYC (recorded only, not part of the key)",
    ]
