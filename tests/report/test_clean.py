import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.report.clean import clean, clean_lines


@given(st.text(alphabet=st.characters(), max_size=300))
def test_result_is_printable(text: str) -> None:
    """No control character, escape, surrogate or direction mark survives, whatever goes in."""
    assert all(letter.isprintable() or unicodedata.category(letter) == "Zs" for letter in clean(text))


@given(st.text(alphabet="\x1b\x9b[];0123456789mAHJK\x07\\ab", max_size=40))
def test_escape_sequences_do_not_reassemble(text: str) -> None:
    """Nested and broken sequences leave nothing behind that a terminal would act on."""
    assert "\x1b" not in clean(text) and "\x9b" not in clean(text) and "\x07" not in clean(text)


def test_removes_colours_and_titles() -> None:
    """Colour codes, window titles and links vanish with all their parameters."""
    assert clean("\x1b[31mred\x1b[0m") == "red"
    assert clean("\x1b]0;owned\x07name") == "name"
    assert clean("\x9b2Jname") == "name"


def test_keeps_names_of_any_script() -> None:
    """Letters outside ASCII are names like any other."""
    assert clean("größe.λ.重み") == "größe.λ.重み"


def test_removes_bidirectional_overrides() -> None:
    """Source that would display in another order than it is stored is shown as stored."""
    assert clean("a\u202e\u2066b") == "ab"


def test_cuts_long_text() -> None:
    """A name of a megabyte becomes one short line."""
    assert clean("x" * 1_000_000) == "x" * 399 + "…"


def test_newlines_become_blanks() -> None:
    """A name cannot start a line of its own."""
    assert clean("loss\nverdict: identical") == "loss verdict: identical"


def test_lines_keep_indentation() -> None:
    """A traceback stays readable."""
    assert clean_lines("File a\n\tx = 1\n  y\x1b[2J") == ["File a", "    x = 1", "  y"]


def test_lines_leave_out_the_middle() -> None:
    """A traceback of a thousand lines shows its two ends."""
    lines = clean_lines("\n".join(map(str, range(1000))), limit=10)
    assert lines == ["0", "1", "2", "3", "4", "… 990 lines left out …", "995", "996", "997", "998", "999"]
