"""Random trainings with neutral edits and at most one fault: the verdict names the fault and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from opguard_ci.capture import call
from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import ASSUMED

from .edits import FAULTS, edited
from .judging import example, judge, same_contract
from .programs import INPUT, Node, Program, random_program
from .running import Fault, run

_SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
_RANDOMS = st.randoms(use_true_random=False)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@settings(_SETTINGS, max_examples=60)
@given(_RANDOMS)
def test_neutral_edits_never_diverge(rng: random.Random) -> None:
    """Clones, views, renames, other order, dead code, draws that are undone, foreach forms: the runs trained alike."""
    program = random_program(rng)
    reference, candidate = run(program), run(edited(rng, program))
    assume(same_contract(reference, candidate))
    found = compare_traces(reference, candidate)
    assert found.passed, found.first_divergence


@settings(_SETTINGS, max_examples=20)
@given(_RANDOMS)
def test_runs_of_one_program_are_identical(rng: random.Random) -> None:
    """The same program twice: identical, with nothing listed and nothing opened."""
    program = random_program(rng)
    found = compare_traces(run(program), run(program))
    assert (found.verdict, found.transient, found.findings) == ("identical", [], [])


@pytest.mark.parametrize("edits", [False, True], ids=["plain", "edited"])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named(kind: str, edits: bool) -> None:
    """The one operator at which the runs part is named with the right cause, or listed as passing."""

    @settings(_SETTINGS, max_examples=12)
    @given(_RANDOMS)
    def named(rng: random.Random) -> None:
        case = example(rng, kind, edits=edits)
        assume(case is not None)
        assert case is not None
        found = judge(case)
        assert found.outcome in ("right", "masked"), found.text

    named()


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "foreign"])
def test_a_fault_is_named_at_level_op(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no input was looked at that need not be, the verdict is the same."""
    monkeypatch.setattr(call, "_FIRST_CALLS", 0)

    @settings(_SETTINGS, max_examples=4)
    @given(_RANDOMS)
    def named(rng: random.Random) -> None:
        case = example(rng, kind, edits=True, level="op")
        assume(case is not None)
        assert case is not None
        found = judge(case)
        assert found.outcome in ("right", "masked"), found.text

    named()


def test_a_foreign_write_at_level_op_is_never_put_down_to_what_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """``overwritten`` is the cause, or one of those left; the first reader may not be the one that is named."""
    monkeypatch.setattr(call, "_FIRST_CALLS", 0)

    @settings(_SETTINGS, max_examples=25)
    @given(_RANDOMS)
    def honest(rng: random.Random) -> None:
        case = example(rng, "foreign", edits=False, level="op")
        assume(case is not None)
        assert case is not None
        first = compare_traces(case.reference, case.candidate).first_divergence
        if first is not None:
            causes = {first["cause"], *first.get("one_of", ())}
            assert causes & {"overwritten", *(("data",) if case.program.from_numpy else ())}, first

    honest()


@settings(_SETTINGS, max_examples=20)
@given(_RANDOMS)
def test_both_levels_leave_the_same_values(rng: random.Random) -> None:
    """Digest by digest, so that a trace of one can be compared with one of the other."""
    program = random_program(rng)
    full, op = run(program), run(program, level="op")
    assert [step["digests"] for step in full.manifest["steps"]] == [step["digests"] for step in op.manifest["steps"]]
    assert any(read.flags & ASSUMED for event in op.events() for read in event.reads)
    assert compare_traces(full, op).verdict == "identical"


# The smallest programs for what was once judged wrongly


def _program(*nodes: tuple[str, tuple[int, ...], dict[str, object]], **options: object) -> Program:
    """Nodes numbered from 1, with a linear layer on the last."""
    made = tuple(Node(number, op, inputs, held) for number, (op, inputs, held) in enumerate(nodes, 1))
    last = len(made)
    defaults: dict[str, object] = {"seed": 1, "heads": (last + 1, last), "optimizer": "sgd", "lr": 0.1, "steps": 2}
    return Program(nodes=(*made, Node(last + 1, "linear", (last,))), **{**defaults, **options})  # type: ignore[arg-type]


def _said(reference: Program, candidate: Program, fault: Fault) -> tuple[str, str, str | None]:
    found = compare_traces(run(reference), run(candidate, fault)).first_divergence
    assert found is not None
    return found["cause"], found["op"], found["module"]


def test_an_operand_whose_old_result_exists_elsewhere() -> None:
    """``lerp(a, a)`` is ``a``: the reference's call made nothing new, and still is the one that got another operand."""
    program = _program(("mul", (0, 0), {}), ("tanh", (1,), {}), ("lerp_", (0, 0), {"weight": 0.25}))
    fault = Fault("operand", node=3, inputs=(1, 0))
    assert _said(program, program, fault) == ("inputs", "aten.lerp_.Scalar", "n3")


def test_operands_exchanged_within_a_list() -> None:
    """The first call that got the operands in another order is named, not the first that made a new value of them."""
    program = _program(("mul", (0, 0), {}), ("foreach", (0, 1), {"factor": 0.5, "loop": False}))
    assert _said(program, program, Fault("swapped", node=2, inputs=(1, 0)))[2] == "n2"


def test_a_zeroed_result_that_heals() -> None:
    """``x - 0`` is ``x``, which exists, as do the zeros: the operator is found by following the operand back."""
    program = _program(
        ("layer_norm", (0,), {"eps": 1e-5}), ("center", (1,), {"dim": 0}), ("center", (1,), {"dim": 0}),
        ("tanh", (3,), {}),
    )  # fmt: skip
    clean = run(program)
    means = [e for e in clean.events() if e.op == "aten.mean.dim" and e.module == "n3"]
    fault = Fault("zero", call=means[0].index, op=means[0].op)
    found = compare_traces(clean, run(program, fault)).first_divergence
    assert found is not None
    assert (found["cause"], found["event"]) == ("kernel", means[0].index)


def test_an_extra_draw_beside_one_that_is_undone() -> None:
    """A draw inside ``fork_rng`` from the same state and of the same shape is not the one that moved the generator."""
    program = _program(("rand", (0,), {}), ("rand", (1,), {}))
    nodes = list(program.nodes)
    nodes.insert(1, Node(1001, "forked_draw", (0,), {"size": 3}))
    nodes.insert(2, Node(1002, "extra_draw", (0,), {"size": 3}))
    candidate = Program(program.seed, tuple(nodes), program.heads, "sgd", 0.1)
    assert _said(program, candidate, Fault("draw", node=1002, step=1)) == ("random", "aten.rand.default", "n1002")


def test_an_extra_draw_among_draws_of_its_kind() -> None:
    """Among draws of one shape, the one too many is told by its surroundings: nobody reads it."""
    program = _program(("rand", (0,), {}), ("rand", (1,), {}), ("rand", (2,), {}))
    nodes = list(program.nodes)
    nodes.insert(1, Node(1001, "extra_draw", (0,), {"size": 48}))
    candidate = Program(program.seed, tuple(nodes), program.heads, "sgd", 0.1)
    assert _said(program, candidate, Fault("draw", node=1001, step=1)) == ("random", "aten.rand.default", "n1001")


def test_a_left_out_copy_of_a_value_that_others_copy_too() -> None:
    """Three buffers hold the same value; the copy into one of them is left out: that one is missing."""
    program = _program(("remember", (0,), {}), ("remember", (0,), {}), ("remember", (0,), {}))
    assert _said(program, program, Fault("skip", node=1, settings={"skip": True})) == (
        "missing", "aten.copy_.default", "n1",
    )  # fmt: skip


def test_another_dimension_of_a_reduction_is_an_argument() -> None:
    """The result has another shape; operator and inputs are the same."""
    program = _program(("center", (0,), {"dim": 0}))
    assert _said(program, program, Fault("settings", node=1, settings={"dim": 1})) == (
        "arguments", "aten.mean.dim", "n1",
    )  # fmt: skip


def test_bytes_that_changed_before_they_were_copied() -> None:
    """A copy passes the mark on to the first operator that reads it."""
    program = _program(("tanh", (INPUT,), {}), ("foreign", (1,), {}), ("add_", (1, 0), {"alpha": 0.5}))
    fault = Fault("foreign", node=2, step=1, once=True)
    assert _said(program, program, fault) == ("overwritten", "aten.add_.Tensor", "n3")


def test_dead_code_beside_a_replaced_operator() -> None:
    """The block of other code begins with what feeds the new value, not with an operator that nobody reads."""
    program = _program(("mul", (0, 0), {}), ("tanh", (0,), {}))
    nodes = list(program.nodes)
    nodes.insert(1, Node(1001, "softmax", (0,), {"dim": 0}))
    candidate = Program(program.seed, tuple(nodes), program.heads, "sgd", 0.1)
    cause, op, module = _said(program, candidate, Fault("replaced", node=2, settings={"op": "relu"}))
    assert (cause, op, module) == ("code", "aten.relu.default", "n2")


def test_a_changed_argument_beside_a_new_multiplication_by_one() -> None:
    """A neutral operator on the same inputs with other arguments is not what became of the reference's operator."""
    program = _program(("item", (0, 0), {"factor": 1.0}), ("tanh", (1,), {}))
    nodes = [Node(1000, "times_one", (0,)), *program.nodes]
    candidate = Program(program.seed, tuple(nodes), program.heads, "sgd", 0.1)
    fault = Fault("settings", node=1, settings={"factor": 0.5})
    assert _said(program, candidate, fault) == ("arguments", "aten.mul.Tensor", "n1")


def test_a_number_that_is_only_looked_at_takes_no_blame() -> None:
    """An added ``item()`` for a log does not come before a changed argument."""
    program = _program(("softmax", (0,), {"dim": 0}), ("tanh", (1,), {}))
    nodes = [Node(1000, "item", (0, 0), {"factor": 1.0}), *program.nodes]
    candidate = Program(program.seed, tuple(nodes), program.heads, "sgd", 0.1)
    fault = Fault("settings", node=1, settings={"dim": 1})
    assert _said(program, candidate, fault) == ("arguments", "aten._softmax.default", "n1")


def test_a_number_that_reached_python_takes_the_blame() -> None:
    """``mean().item()`` of a value that differs gives another argument: the operator before it is named."""
    program = _program(("tanh", (0,), {}), ("item", (1, 0), {"factor": 1.0}))
    fault = Fault("replaced", node=1, settings={"op": "relu"})
    assert _said(program, program, fault) == ("code", "aten.relu.default", "n1")
