from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.worker import ending
from opguard_ci.worker.ending import Ending, Frame, operator_in, outcome_of, user_stack
from opguard_ci.worker.request import RunRequest

REQUEST = RunRequest("train.py", cwd="/", output="/out", timeout=30)

PACKAGE = Path(ending.__file__).parent
STACK = f"""Fatal Python error: Segmentation fault

Thread 0x00007f1 (most recent call first):
  File "/home/me/loader.py", line 7 in load
  File "{PACKAGE}/child.py", line 1 in main

Current thread 0x00007f2 (most recent call first):
  File "/env/lib/python3.11/site-packages/torch/nn/functional.py", line 99 in linear
  File "/home/me/model.py", line 88 in forward
  File "/home/me/train.py", line 3 in <module>
  File "{PACKAGE}/child.py", line 1 in main
  File "<string>", line 9 in <module>

Extension modules: numpy (total: 1)
"""


def test_the_users_stack_is_that_of_the_current_thread() -> None:
    """Frames of torch, of opguard_ci and of the server's start are left out; the innermost comes first."""
    assert user_stack(STACK) == [
        Frame("/home/me/model.py", 88, "forward"),
        Frame("/home/me/train.py", 3, "<module>"),
    ]


def test_another_thread_stands_in() -> None:
    """If the current thread runs no line of the user's, the first that does is shown."""
    assert user_stack(STACK.replace("/home/me/model", "<frozen x>").replace("/home/me/train", "<frozen y>")) == [
        Frame("/home/me/loader.py", 7, "load")
    ]


@given(st.text())
def test_any_text_is_a_stack(text: str) -> None:
    """Text that is no stack gives no frames."""
    assert user_stack(text) == []


@given(st.binary(max_size=256))
def test_any_bytes_are_a_breadcrumb(data: bytes) -> None:
    """A torn or foreign breadcrumb never raises, and never holds NUL."""
    name = operator_in(data)
    assert name is None or (name and "\0" not in name)


@pytest.mark.parametrize(
    ("end", "slug", "words"),
    [
        (Ending("timeout"), "timeout", "timeout of 30 s"),
        (Ending("signal", signal.SIGSEGV), "crashed", "crashed with SIGSEGV"),
        (Ending("signal", signal.SIGKILL), "killed", "because memory ran out"),
        (Ending("signal", signal.SIGTERM), "killed", "ended by SIGTERM"),
        (Ending("signal", 63), "crashed", "63"),
        (Ending("exit", 0), "crashed", "os._exit or a C exit, code 0"),
        (Ending("server-lost"), "killed", "server was killed"),
        (Ending("warden-lost"), "killed", "watched it was killed"),
    ],
)
def test_an_end_without_outcome_is_untestable(end: Ending, slug: str, words: str) -> None:
    """Every way to end without an outcome has a slug and a sentence with target and last operator."""
    outcome = outcome_of(end, REQUEST, b"aten.mm.default\0\0")
    assert (outcome["status"], outcome["slug"]) == ("untestable", slug)
    assert outcome["message"].startswith("train.py ")
    assert words in outcome["message"]
    assert "aten.mm.default" in outcome["message"]


def test_the_message_names_the_line() -> None:
    """The innermost line of the user's is in the message, the rest in the traceback, outermost first."""
    outcome = outcome_of(Ending("signal", signal.SIGSEGV, stack=STACK), REQUEST, bytes(256))
    assert outcome["message"] == "train.py crashed with SIGSEGV; at /home/me/model.py:88 in forward."
    assert outcome["traceback"].splitlines()[1].endswith("in <module>")


def test_an_outcome_stands() -> None:
    """What the child reported is kept; what happened to its process later is a note."""
    message = {"status": "ok", "notes": ["a"]}
    assert outcome_of(Ending("exit", message=message), REQUEST, b"") == message
    late = outcome_of(Ending("timeout", message=message, stuck=("python",)), REQUEST, b"")
    assert late["status"] == "ok"
    assert len(late["notes"]) == 3
