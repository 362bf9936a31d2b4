from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.report.layout import WIDTH, plain
from opguard_ci.report.text import error_lines, render
from opguard_ci.report.words import CAUSES, VERDICTS

STACK = [
    {"file": "model.py", "line": 88, "function": "forward", "source": "x = F.layer_norm(x, self.shape)"},
    {"file": "train.py", "line": 42, "function": "main", "source": "loss = model(batch)"},
]


def divergence(**changes: Any) -> dict[str, Any]:
    base = {
        "step": 2,
        "rank": 0,
        "phase": "forward",
        "op": "aten.native_layer_norm.default",
        "module": "blocks.1.norm",
        "side": "candidate",
        "cause": "arguments",
        "detail": "eps 1e-05 -> 1e-06",
        "first_seen_step": 2,
        "before": ["aten.native_layer_norm.default"],
        "after": ["aten.native_layer_norm.default"],
        "stack": STACK,
        "event": 102,
    }
    return {**base, **changes}


def document(verdict: str, **changes: Any) -> dict[str, Any]:
    base = {
        "schema": 1,
        "verdict": verdict,
        "reference": {"commit": "3f2a91c0" * 5, "environment": "1a2b3c4d" * 4, "trace": "runs/a"},
        "candidate": {"commit": "77b04e11" * 5 + "+dirty", "environment": "1a2b3c4d" * 4, "trace": "runs/b"},
        "first_divergence": None,
        "contract": [],
        "transient": [],
        "findings": [],
        "structure": {"inserted": 0, "removed": 0, "moved": 0},
        "coverage": {"operators": 2471, "hashed": 2471, "unhashed": [], "unseen": []},
        "notes": [],
    }
    return {**base, **changes}


def text(value: dict[str, Any]) -> str:
    return plain(render(value))


def test_diverged() -> None:
    """The whole report of an edited argument, to the letter."""
    evidence = {
        "inputs": [
            {
                "name": "input",
                "reference": "0123456789abcdef",
                "candidate": "0123456789abcdef",
                "equal": True,
                "spec": "float32[4,32,64]",
            }
        ],
        "arguments": [{"name": "eps", "reference": "1e-05", "candidate": "1e-06"}],
        "outputs": [
            {
                "name": "output 0",
                "reference": "0123456789abcdef",
                "candidate": "fedcba9876543210",
                "equal": False,
                "spec": "float32[4,32,64]",
            }
        ],
    }
    contract = [{"step": 2, "name": "loss", "equal": False}, {"step": 3, "name": "model.head.weight", "equal": False}]
    verdict = document("diverged", first_divergence=divergence(evidence=evidence), contract=contract)
    assert text(verdict) == (
        """\
diverged: step 2, forward, aten.native_layer_norm.default in blocks.1.norm: arguments

  reference   runs/a, commit 3f2a91c03f2a, environment 1a2b3c4d1a2b
  candidate   runs/b, commit 77b04e1177b0+dirty, environment 1a2b3c4d1a2b (the same)

First divergence
  where       step 2, forward, blocks.1.norm
  operator    aten.native_layer_norm.default
  what        arguments: eps 1e-05 -> 1e-06
              The same operator was called on the same tensors with other arguments.
  evidence              reference         candidate
              input     0123456789abcdef  the same          float32[4,32,64]
              eps       1e-05             1e-06
              output 0  0123456789abcdef  fedcba9876543210  float32[4,32,64]
  source      >  model.py:88  forward  x = F.layer_norm(x, self.shape)
                 train.py:42  main     loss = model(batch)

Contract
  first different in step 2: loss
  later also 1 other value

  coverage    2,471 of 2,471 operators fingerprinted

Next
  opguard show runs/b --events 98..106 --tensors  # what ran around it
"""
    )


def test_identical() -> None:
    """The report of two equal runs fits in a few lines."""
    assert text(document("identical")) == (
        """\
identical: every contract value and every operator is bit-equal in both runs

  reference   runs/a, commit 3f2a91c03f2a, environment 1a2b3c4d1a2b
  candidate   runs/b, commit 77b04e1177b0+dirty, environment 1a2b3c4d1a2b (the same)

  coverage    2,471 of 2,471 operators fingerprinted
"""
    )


def test_untestable_run() -> None:
    """A run that failed shows the user's traceback, the sentence, and where to read what was captured."""
    error = {
        "slug": "target-raised",
        "message": "train.py raised ValueError in step 2: bad batch",
        "traceback": 'Traceback (most recent call last):\n  File "train.py", line 3, in main\nValueError: bad batch\n',
    }
    run = {
        "schema": 1,
        "verdict": "untestable",
        "target": "train.py",
        "trace": "runs/a",
        "profile": "observe",
        "level": "full",
        "environment": "1a2b3c4d",
        "steps": 2,
        "findings": [],
        "coverage": {"operators": 10, "hashed": 10, "unhashed": [], "unseen": []},
        "notes": [],
        "error": error,
    }
    assert text(run) == (
        """\
untestable: train.py raised ValueError in step 2: bad batch [target-raised]

  Traceback (most recent call last):
    File "train.py", line 3, in main
  ValueError: bad batch

  target      train.py
  trace       runs/a
  profile     observe
  level       full
  environment 1a2b3c4d
  steps       2

  coverage    10 of 10 operators fingerprinted

Next
  opguard show runs/a  # what was captured
"""
    )


def test_run_with_finding() -> None:
    """A finding of a single run is a block of the same form as a divergence."""
    op = "mylib.scale.default"
    finding = divergence(cause="hidden-mutation", op=op, detail="argument 0", before=[], after=[op])
    run = {
        "schema": 1,
        "verdict": "findings",
        "target": "t.py:f",
        "trace": "runs/a",
        "steps": 3,
        "findings": [finding],
        "coverage": {"operators": 10, "hashed": 9, "unhashed": ["aten._sparse_mm.default"], "unseen": []},
        "notes": ["2 loader workers"],
    }
    shown = text(run)
    assert shown.startswith("findings: ")
    assert "\nFindings of the single run (1)\n  where       step 2, forward, blocks.1.norm\n" in shown
    assert "what        hidden-mutation: argument 0\n" in shown
    assert "9 of 10 operators fingerprinted; without fingerprint: aten._sparse_mm.default\n" in shown
    assert "\nNotes\n  - 2 loader workers\n" in shown
    assert "operators   reference" not in shown


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_is_explained(cause: str) -> None:
    """The report names the cause, its detail, and explains it in words."""
    shown = text(document("diverged", first_divergence=divergence(cause=cause, detail="because")))
    assert f"what        {cause}: because\n" in shown
    assert CAUSES[cause].split(".")[0] in " ".join(shown.split())


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_is_the_first_word(verdict: str) -> None:
    """Whoever reads one word reads the verdict."""
    assert text(document(verdict)).startswith(f"{verdict}: ")


def test_random_draw() -> None:
    """A draw from another generator state shows both states, and other shapes are shown side by side."""
    state = {"reference": "00000000000000aa", "candidate": "00000000000000bb"}
    output = {
        "name": "output 0",
        "reference": None,
        "candidate": "00000000000000cc",
        "equal": False,
        "spec": "float32[8]",
    }
    changed = divergence(evidence={"generator": state, "outputs": [{**output, "reference_spec": "float32[4]"}]})
    shown = text(document("diverged", first_divergence=changed))
    assert "generator state  00000000000000aa  00000000000000bb\n" in shown
    assert "output 0         none              00000000000000cc  float32[4] -> float32[8]\n" in shown


def test_code_shows_both_blocks() -> None:
    """For other code the operators of both sides stand beside each other."""
    changed = divergence(
        cause="code", op="aten.mul.Tensor", computes="aten.add.Tensor", before=["a"], after=["b", "c"], detail=""
    )
    shown = text(document("diverged", first_divergence=changed))
    assert "  computes    aten.add.Tensor\n  what        code\n" in shown
    assert "  operators   reference  candidate\n              a          b\n                         c\n" in shown


def test_reference_side_is_said() -> None:
    """A fault of the reference is not blamed on the candidate."""
    shown = text(document("diverged", first_divergence=divergence(cause="overwritten", side="reference")))
    assert "where       step 2, forward, blocks.1.norm, on the reference's side\n" in shown
    assert "opguard show runs/a --events 98..106" in shown


def test_setup_has_no_step_number() -> None:
    """What ran before step 0 is called setup."""
    shown = text(document("diverged", first_divergence=divergence(step=-1, phase="setup", first_seen_step=-1)))
    assert shown.startswith("diverged: setup, aten.native_layer_norm.default in blocks.1.norm: arguments\n")


def test_zoomed_tensors() -> None:
    """How much differs, where the runs were repeated to find out."""
    tensor = {"name": "output 0", "dtype": "float32", "shape": [4, 32], "different": 41, "elements": 128}
    changed = divergence(tensors=[{**tensor, "max_ulp": 3, "max_abs": 2.4e-07}])
    shown = text(document("diverged", first_divergence=changed))
    assert "output 0  float32[4,32]  41 of 128  3                2.4e-07\n" in shown


def test_long_lists_are_counted() -> None:
    """Eight names, five transients, five findings, then a number."""
    contract = [{"step": 1, "name": f"w{number}", "equal": False} for number in range(11)]
    many = [divergence() for _ in range(9)]
    shown = text(document("diverged", contract=contract, transient=many, findings=many, first_divergence=divergence()))
    assert "first different in step 1: w0, w1, w2, w3, w4, w5, w6, w7 and 3 more\n" in shown
    assert shown.count("  and 4 more\n") == 2


def test_unseen_operators_are_named() -> None:
    """What capture could not see stands in the coverage line."""
    coverage = {"operators": 5, "hashed": 5, "unhashed": [], "unseen": ["inductor graph 0"]}
    assert "; ran unseen: inductor graph 0\n" in text(document("untestable", coverage=coverage))


def test_environments_that_differ_are_explained_next() -> None:
    """Two keys lead to the command that explains them."""
    verdict = document("environment", candidate={"commit": None, "environment": "ffff", "trace": "runs/my b"})
    assert "opguard doctor --diff runs/a 'runs/my b'" in text(verdict)
    assert "runs/my b, no commit, environment ffff\n" in text(verdict)


def test_unstable_kinds() -> None:
    """Each kind of instability has its own block."""
    other = divergence(op="aten.rand.default", cause="random", detail="seed")
    verdict = document("unstable", first_divergence=divergence(cause="kernel"), unstable=[other], target="t.py")
    shown = text({**verdict, "profile": "observe"})
    assert "\nAlso unstable\n" in shown and "what        random: seed\n" in shown
    assert "opguard replay t.py --profile strict" in shown


def test_error_object() -> None:
    """An error is the user's traceback and one sentence."""
    error = {"slug": "usage", "message": "no such file"}
    assert plain(error_lines({"verdict": "error", "error": error})) == "opguard: no such file [usage]\n"
    traceback = {**error, "traceback": "ValueError: x"}
    assert plain(error_lines({"verdict": "error", "error": traceback})).startswith("ValueError: x\nopguard: ")


hostile = st.sampled_from(["\x1b[2J", "a\nverdict: identical", "\x9b31m", "\u202eabc", "\ud800", "x" * 5000, "", "\t"])


@given(hostile, hostile, hostile)
def test_names_of_strangers_are_harmless(name: str, source: str, note: str) -> None:
    """Neither names nor source lines nor notes reach the terminal with anything but printable characters."""
    frame = {"file": name, "line": 1, "function": name, "source": source}
    changed = divergence(op=name, module=name, detail=source, stack=[frame], before=[name], after=[source])
    contract = [{"step": 0, "name": name, "equal": False}]
    shown = text(document("diverged", first_divergence=changed, contract=contract, notes=[note], transient=[changed]))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "verdict: identical" not in [line.strip() for line in shown.split("\n")]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["file", "name", "inputs"]), inner),
    max_leaves=5,
)
fields = st.sampled_from([*divergence(), "evidence", "tensors", "computes"])


@given(st.dictionaries(fields, anything))
def test_any_finding_can_be_shown(finding: dict[str, Any]) -> None:
    """Findings come from a manifest that anybody may have written: whatever is in them, there is a report."""
    assert text(document("identical", findings=[finding], transient=[finding]))


def test_fits_the_terminal() -> None:
    """Long names are shortened in tables, and sentences wrapped; only commands are left whole."""
    frame = {"file": "a/" * 60 + "model.py", "line": 1, "function": "f" * 40, "source": "y = " + "x + " * 50}
    changed = divergence(stack=[frame], before=["a" * 90], after=["b" * 90], detail="much " * 50)
    verdict = document("diverged", first_divergence=changed, transient=[changed], notes=["word " * 100])
    report, commands = text(verdict).split("\nNext\n")
    assert max(map(len, report.split("\n"))) <= WIDTH
    assert commands


def test_draws_name_who_made_them() -> None:
    """The one that was inserted, and those of both sides that see another state for it."""

    def who(op: str, line: int) -> dict[str, Any]:
        stack = [{"file": "train.py", "line": line, "function": "f", "source": ""}]
        return {"step": 1, "phase": "data", "op": op, "module": None, "outputs": ["int64[]"], "stack": stack}

    draw = {
        "what": "inserted",
        "by": who("aten.random_.default", 41),
        "shifted": {"reference": who("aten.randperm.default", 44), "candidate": None},
    }
    first = divergence(op="aten.random_.default", cause="random", draw=draw)
    shown = " ".join(text(document("diverged", first_divergence=first)).split())
    assert "draws inserted step 1, data aten.random_.default int64[] train.py:41" in shown
    assert "shifted reference step 1, data aten.randperm.default int64[] train.py:44" in shown
