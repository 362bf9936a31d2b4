from __future__ import annotations

import html
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.report.github import (
    MAX_ANNOTATIONS,
    error_commands,
    escape_data,
    escape_property,
    literal,
    resume_commands,
    stop_commands,
    summary,
)
from tests.report.test_junit import ANYTHING, result

LIMIT = 1 << 16


def document(*results: dict[str, Any]) -> dict[str, Any]:
    return {"schema": 1, "verdict": results[0]["verdict"], "results": list(results)}


def unescaped(text: str) -> str:
    for code, letter in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, letter)
    return text


@given(ANYTHING)
def test_escaping_is_one_line_and_reversible(text: str) -> None:
    """The runner gets back what was meant; nothing can end the line or the property early."""
    assert unescaped(escape_data(text)) == text
    assert unescaped(escape_property(text)) == text
    assert not {"\r", "\n"} & set(escape_data(text))
    assert not {"\r", "\n", ":", ","} & set(escape_property(text))


def test_a_failure_is_annotated_on_the_users_line() -> None:
    """Not in a library; passing and skipped recipes are not annotated."""
    commands = error_commands(
        document(
            result("diverged", command="opguard bisect x"), result("identical"), result("no-reference", missing="skip")
        )
    )
    assert commands == [
        "::error file=model.py,line=88,title=opguard%3A train.py%3Af::diverged: step 2, forward, aten.mul.Tensor: "
        "arguments%0Aopguard bisect x"
    ]


def test_a_root_below_the_workspace() -> None:
    """Annotations name files as the workspace does."""
    (command,) = error_commands(document(result("diverged")), "sub/")
    assert "file=sub/model.py," in command


def test_no_more_than_ten_annotations() -> None:
    """GitHub shows ten of a kind; the last one says how many are left out."""
    commands = error_commands(document(*[result("diverged")] * 25))
    assert len(commands) == MAX_ANNOTATIONS == 10
    assert "16 more recipes failed" in commands[-1]


@given(ANYTHING, ANYTHING, ANYTHING)
def test_nothing_untrusted_acts_in_an_annotation(target: str, op: str, file: str) -> None:
    """One command per failure, on one line, whatever the names are."""
    hostile = result("diverged", target=f"x\n::error::{target}")
    frames = [{"file": f"m\n::add-mask::{file}", "line": 3, "function": op, "source": op}]
    hostile["first_divergence"] = {**hostile["first_divergence"], "op": f"{op}\r\n::set-output::", "stack": frames}
    (command,) = error_commands(document(hostile))
    assert command.splitlines()[0].count("::") >= 2
    assert not {"\r", "\n"} & set(command)
    properties = command.removeprefix("::error ").partition("::")[0]
    assert {part.partition("=")[0] for part in properties.split(",")} <= {"file", "line", "title"}


@given(ANYTHING)
def test_literal_text_is_no_markup(text: str) -> None:
    """Only letters, digits and harmless signs stand as they are; shown, it is what was given, cleaned."""
    shown = literal(f"|`<b>[x](y)*_@{text}")
    assert not set(shown) & set("|`<>[]*_@\n")
    assert html.unescape(shown).startswith("|`<b>[x](y)*_@")


@given(st.lists(ANYTHING, min_size=1, max_size=5))
def test_a_summary_holds_no_foreign_markup(texts: list[str]) -> None:
    """Tags are our own, and blocks of code end where they should."""
    hostile = [{"slug": "s", "message": f"</pre><script>{text}", "traceback": text} for text in texts]
    results = [result("untestable", target=error["traceback"], error=error) for error in hostile]
    shown = summary(document(*results))
    assert set(re.findall(r"</?([a-z]+)", shown)) <= {"details", "summary", "pre"}
    assert shown.count("<pre>") == shown.count("</pre>") == len(texts)


def test_a_summary_stays_below_64_kib() -> None:
    """However many recipes failed with however much text, in bytes; all are counted."""
    traceback = "\n".join(f"  File {number}: {'é' * 300}" for number in range(500))
    many = [result("untestable", error={"slug": "s", "message": "m", "traceback": traceback}) for _ in range(60)]
    for count in (1, 3, 60):
        shown = summary(document(*many[:count]))
        assert len(shown.encode()) < LIMIT
        assert "rest is in the log" in shown or "more failures are in the log" in shown
        if count > 50:
            assert f"and {count - 50} more" in shown


def test_a_summary_of_passing_recipes() -> None:
    """A table and nothing else."""
    shown = summary(document(result("identical"), result("no-reference", missing="skip")))
    assert "<details" not in shown
    assert shown.count("\n| ") == 3


def test_commands_of_others_are_stopped_by_a_token() -> None:
    """https://docs.github.com/en/actions: stopping and starting workflow commands."""
    assert (stop_commands("t"), resume_commands("t")) == ("::stop-commands::t", "::t::")
