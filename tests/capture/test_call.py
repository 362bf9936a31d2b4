"""What a call reads and writes, links between calls, hidden and foreign writes, random draws."""

from __future__ import annotations

import pytest
import torch

from opguard_ci.capture.schema import describe
from opguard_ci.trace.model import HIDDEN, OUTSIDE, OVER, STRIDED, UNREAD, WEAK, Event

from .running import Programs, Ran

START = """
import ctypes
import numpy as np
import torch
from torch import nn
"""


def run(programs: Programs, body: str) -> Ran:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    ran = programs.run(f"{START}\ndef main():\n{lines}\n")
    assert ran.ok, ran.answer
    assert ran.manifest["coverage"]["unseen"] == []
    return ran


def one(ran: Ran, op: str) -> Event:
    (event,) = ran.events(op)
    return event


def test_an_event_has_reads_writes_and_arguments(programs: Programs):
    """Values link outputs to the inputs that they become; defaults are written out."""
    ran = run(programs, "a = torch.arange(6.0).view(2, 3)\nb = a + a\nc = torch.add(b, 2.0, alpha=3)")
    first, second = ran.events("aten.add")
    assert first.args == "self=%0, other=%1, alpha=1"
    assert [read.spec for read in first.reads] == ["float32[2,3]"] * 2
    assert second.args == "self=%0, other=%1, alpha=3" or second.args == "self=%0, other=2.0, alpha=3"
    assert second.reads[0].value == first.writes[0].value
    assert second.reads[0].writers == (first.index,)
    assert first.lane == 0


def test_kinds(programs: Programs):
    """Views, copies and allocations are told apart; a copy to another dtype computes something."""
    ran = run(
        programs,
        "x = torch.ones(3, 4) * 2\nx.t(); x.clone(); x.double(); torch.empty_like(x).copy_(x[0]); torch.zeros(2)\n"
        "x.view(-1); x.detach(); x.unsqueeze(0); x.contiguous(); x.to(torch.float32)",
    )
    kinds = {event.op: event.kind for event in ran.events()}
    assert kinds["aten.t.default"] == kinds["aten.view.default"] == kinds["aten.unsqueeze.default"] == "view"
    assert kinds["aten.clone.default"] == "copy"
    assert kinds["aten._to_copy.default"] == "op"
    assert kinds["aten.empty_like.default"] == "alloc"
    assert kinds["aten.copy_.default"] == "op"  # it broadcasts
    assert kinds["aten.mul.Tensor"] == "op"


def test_what_an_operator_only_overwrites_is_not_read(programs: Programs):
    """fill_, zero_, copy_, out=: the place stands there without a value."""
    ran = run(
        programs,
        "x = torch.empty(6)\nx.fill_(2.0)\nx.zero_()\nx.copy_(torch.arange(6.0))\nx.uniform_()\n"
        "torch.mul(x, 2, out=torch.empty(6))\nx.mul_(2)",
    )
    for op in ("aten.fill_", "aten.zero_", "aten.copy_", "aten.uniform_"):
        assert one(ran, op).reads[0].flags == UNREAD
        assert one(ran, op).reads[0].value == 0
        assert one(ran, op).writes[0].slot == -1
    assert one(ran, "aten.mul.out").reads[-1].flags == UNREAD
    assert one(ran, "aten.mul_").reads[0].value == one(ran, "aten.uniform_").writes[0].value


def test_new_memory_has_no_value(programs: Programs):
    """``empty`` and what a growing resize adds: garbage is never hashed into a trace."""
    ran = run(programs, "x = torch.empty(1000)\ny = torch.ones(4)\ny.resize_(2000)\ny + 0")
    assert one(ran, "aten.empty").writes[0].value == 0
    assert one(ran, "aten.resize_").writes[0].value == 0
    assert one(ran, "aten.resize_").index in one(ran, "aten.add").reads[0].writers


def test_a_shrinking_resize_keeps_its_writer(programs: Programs):
    """The bytes are still those that were written."""
    ran = run(programs, "y = torch.arange(8.0) * 2\ny.resize_(4)\ny + 1")
    assert one(ran, "aten.add").reads[0].writers == (one(ran, "aten.mul").index,)


def test_weak_values(programs: Programs):
    """At most 4 elements, integers, booleans, all zeros or all ones prove nothing."""
    ran = run(
        programs,
        "x = torch.arange(9.0) / 7\ny = [x[:4] * 2, x > 1, x.long() * 3, x * 0, (x * 0).exp(), x * 2]",
    )
    weak = [bool(event.writes[0].flags & WEAK) for event in ran.events("aten.mul", "aten.gt", "aten.exp")]
    assert weak == [True, True, True, True, True, True, False]


@pytest.mark.parametrize(
    "write",
    [
        "x.numpy()[1] = 9",
        "torch.utils.dlpack.to_dlpack(x); np.from_dlpack(x)[1] = 9",
        "ctypes.memmove(x.data_ptr(), (ctypes.c_float * 1)(9.0), 4)",
        "memoryview(x.numpy())[2] = 7.0",
    ],
)
def test_a_write_behind_the_recorders_back_marks_the_next_read(write: str, programs: Programs):
    """numpy, DLPack, a raw pointer, the storage: the bytes are not those last seen."""
    ran = run(programs, f"x = torch.arange(8.0) * 2\nx + 1\n{write}\nx + 2\ny = x.sum()\nx.fill_(1.0)\nx + 3")
    before, after, then = ran.events("aten.add")
    assert not before.reads[0].flags & OVER
    assert after.reads[0].flags & OVER
    assert one(ran, "aten.sum").reads[0].flags & OVER  # it sticks
    assert not then.reads[0].flags & OVER  # until a recorded write
    assert after.reads[0].writers == before.reads[0].writers


def test_a_write_to_a_saved_tensor_is_seen_in_backward(programs: Programs):
    """The forward's input changed through numpy before its backward reads it."""
    ran = run(
        programs,
        "x = torch.ones(8) * 2\nw = torch.ones(8, requires_grad=True)\n"
        "y = (x * w).sum()\nx.numpy()[:] = 0\ny.backward()",
    )
    backward = [event for event in ran.events("aten.mul") if event.phase == "backward"]
    assert any(read.flags & OVER for event in backward for read in event.reads)


@pytest.mark.parametrize(
    "body",
    [
        "x = torch.from_numpy(np.zeros(8, np.float32))\nfor n in range(3):\n    x.numpy()[:] = n\n    x * 2",
        "h = np.zeros(8, np.float32)\nfor n in range(3):\n    h[:] = n\n    torch.from_numpy(h) * 2",
        "x = torch.empty(8)\nfor n in range(3):\n    x.numpy()[:] = n\n    x * 2",
        "x = torch.ones(8)\ny = x * 2\ny.data = torch.zeros(8)\ny * 2",
        "for n in range(50):\n    torch.full((999,), float(n)) * 2",
        "m = nn.Linear(3, 3)\nm.load_state_dict(nn.Linear(3, 3).state_dict())\nm(torch.ones(1, 3)) * 2",
        "x = torch.arange(8.0) * 2\nv = x.numpy()\nx.add_(1)\nx * 2\nv.sum()",
        "x = torch.arange(8.0) * 2\ntorch.from_numpy(x.numpy()[2:6]).add_(1)\nx * 2",
        "x = torch.view_as_complex(torch.ones(4, 2)) * 2\nx.conj() * 2\nx * 2\nx.conj().imag * 2\nx.imag * 2",
    ],
)
def test_what_is_nobodys_fault_is_not_marked(body: str, programs: Programs):
    """Refilled buffers of others, swaps, reuse by the allocator, loads, aliases written by recorded operators."""
    ran = run(programs, body)
    assert not any(read.flags & OVER for event in ran.events() for read in event.reads)
    assert not any(write.flags & HIDDEN for event in ran.events() for write in event.writes)


def test_a_refilled_buffer_comes_from_outside_each_time(programs: Programs):
    """Numpy's memory that an operator wrote and numpy refilled has no recorded writer any more."""
    ran = run(
        programs,
        "h = np.zeros(8, np.float32)\nx = torch.from_numpy(h)\n"
        "for n in range(3):\n    h[:] = n + 1\n    x.mul_(0.5)\n    x + 1",
    )
    assert all(event.reads[0].flags & OUTSIDE for event in ran.events("aten.mul_"))
    assert all(not event.reads[0].flags & OUTSIDE for event in ran.events("aten.add"))


LIBRARY = """
@torch.library.custom_op("mine::silent", mutates_args=())
def silent(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.numpy()[0] = 99
    return y * 2

@torch.library.custom_op("mine::alias", mutates_args={"x"})
def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return y * 2

@torch.library.custom_op("mine::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(3)
"""


def custom(programs: Programs, body: str) -> Ran:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    ran = programs.run(f"{START}{LIBRARY}\ndef main():\n{lines}\n")
    assert ran.ok, ran.answer
    return ran


@pytest.mark.parametrize("size", [8, 100_000])
def test_a_custom_operator_that_writes_what_it_declares_read_only(size: int, programs: Programs):
    """A hidden write, of small and large tensors: the operator is its writer, and no foreign write remains."""
    ran = custom(programs, f"x, y = torch.ones({size}) * 3, torch.ones({size})\nsilent(x, y)\nx + 1")
    event = one(ran, "mine.silent")
    hidden = [write for write in event.writes if write.flags & HIDDEN]
    assert [write.slot for write in hidden] == [-1]
    after = one(ran, "aten.add").reads[0]
    assert (after.value, after.writers, after.flags) == (hidden[0].value, (event.index,), 0)


def test_arguments_that_alias_are_no_hidden_writes(programs: Programs):
    """One argument is declared written, another shows the same memory."""
    ran = custom(programs, "x = torch.ones(8) * 3\nboth(x, x[2:])\nx.addcmul_(x, x)\ntorch.add(x, x[:], out=x)")
    assert not any(write.flags & HIDDEN for event in ran.events() for write in event.writes)


def test_batch_norm_writes_its_statistics_in_every_run(programs: Programs):
    """Its schema does not say so; the trace does."""
    ran = run(programs, "m = nn.BatchNorm1d(8)\nfor n in range(8):\n    m(torch.randn(5, 8))")
    events = ran.events("aten.native_batch_norm")
    assert [sum(bool(write.flags & HIDDEN) for write in event.writes) for event in events] == [2] * 8


def test_large_batch_norms_are_always_checked(programs: Programs):
    """More features than the bytes that are always hashed again."""
    ran = run(programs, "m = nn.BatchNorm1d(20_000)\nfor n in range(6):\n    m(torch.randn(2, 20_000))")
    assert all(sum(bool(w.flags & HIDDEN) for w in e.writes) == 2 for e in ran.events("aten.native_batch_norm"))


def test_draws_have_generator_and_states(programs: Programs):
    """Before and after, also inside custom operators; the next draw begins where the last ended."""
    ran = custom(
        programs,
        "g = torch.Generator().manual_seed(1)\na = torch.rand(3)\n"
        "b = torch.rand(3, generator=g)\nnoise(a)\ntorch.rand(3)",
    )
    first, own, second = ran.events("aten.rand")
    inside = one(ran, "mine.noise").draw
    assert first.draw and own.draw and second.draw and inside
    assert (first.draw.generator, own.draw.generator, inside.generator) == (0, 1, 0)
    assert first.draw.after == inside.before
    assert inside.after == second.draw.before
    assert "generator" not in own.args
    assert first.args.replace("rand", "") == second.args.replace("rand", "")


def test_a_custom_operator_that_draws_nothing_has_no_draw(programs: Programs):
    """Only what changed a generator counts as a draw."""
    assert one(custom(programs, "both(torch.ones(3), torch.ones(3))"), "mine.alias").draw is None


def test_strided_reads_are_marked(programs: Programs):
    """A transposed operand is one that another kernel may serve."""
    ran = run(programs, "x = torch.arange(6.0).view(2, 3)\nx.t() + 1\nx + 1")
    assert [bool(event.reads[0].flags & STRIDED) for event in ran.events("aten.add")] == [True, False]


def test_operators_that_raise_leave_no_event(programs: Programs):
    """And their arguments are not thought to be under way for ever."""
    ran = run(
        programs,
        "x = torch.ones(3) * 2\ntry:\n    x.add_(torch.ones(4))\n"
        "except RuntimeError:\n    pass\nx.numpy()[0] = 7\nx + 1",
    )
    assert ran.events("aten.add_") == []
    assert one(ran, "aten.add").reads[0].flags & OVER


def test_optional_and_listed_tensors(programs: Programs):
    """Lists with holes, and many tensors at once."""
    ran = run(
        programs,
        "x = torch.arange(12.0).view(3, 4)\nx[:, torch.tensor([1, 2])]\ntorch.stack([x] * 70)\n"
        "torch._foreach_add_([x, x * 2], 1.0)",
    )
    assert one(ran, "aten.index").args == "self=%0, indices=[None, %1]"
    assert one(ran, "aten.stack").args.endswith("%69], dim=0") or one(ran, "aten.stack").args.startswith("tensors=[%0")
    assert len(one(ran, "aten.stack").reads) == 70
    assert [write.slot for write in one(ran, "aten._foreach_add_").writes] == [-1, -2]


def test_very_long_arguments_are_cut_but_told_apart(programs: Programs):
    """A list of thousands of numbers ends in its digest."""
    ran = run(programs, "x = torch.ones(1, 1)\nx.repeat([1] * 3000)\nx.repeat([1] * 2999 + [2])")
    first, second = ran.events("aten.repeat")
    assert len(first.args) < 4100
    assert first.args[:4000] == second.args[:4000]
    assert first.args != second.args


def test_host_reads_are_marked(programs: Programs):
    """``item`` and ``equal`` hand a value to Python."""
    ran = run(programs, "x = torch.ones(3)\nx.sum().item()\ntorch.equal(x, x)\nif x[0] > 0:\n    pass")
    assert {event.op for event in ran.events() if event.flags & 4} == {
        "aten._local_scalar_dense.default",
        "aten.equal.default",
    } or {event.op for event in ran.events() if event.flags & 4} >= {"aten._local_scalar_dense.default"}


def test_recomputation_is_marked(programs: Programs):
    """What checkpointing runs again in backward is no new work; a double backward is none of it."""
    ran = run(
        programs,
        "from torch.utils.checkpoint import checkpoint\nx = torch.ones(3, requires_grad=True)\n"
        "checkpoint(lambda t: t.sin().cos(), x, use_reentrant=False).sum().backward()\n"
        "(g,) = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)",
    )
    assert [bool(event.flags & 1) for event in ran.events("aten.sin")] == [False, True, False]


def test_views_in_place_write_nothing(programs: Programs):
    """``t_``, ``squeeze_``, ``set_``: the bytes are still those of whoever wrote them."""
    ran = run(
        programs,
        "x = torch.arange(6.0).view(2, 3) * 2\nx.t_()\nx.unsqueeze_(0)\nx + 1\n"
        "y = torch.ones(3)\ny.set_(x.untyped_storage(), 0, (6,), (1,))\ny + 2",
    )
    assert [event.reads[0].writers for event in ran.events("aten.add")] == [(one(ran, "aten.mul").index,)] * 2


def test_what_attention_draws_from_has_no_value():
    """Where nothing is dropped, seed and offset are memory that nobody wrote; the generator tells what was drawn."""
    aten = torch.ops.aten
    for op, returns in (
        (aten._scaled_dot_product_flash_attention, {6, 7}),
        (aten._scaled_dot_product_efficient_attention, {2, 3}),
        (aten._scaled_dot_product_cudnn_attention, {6, 7}),
        (aten._flash_attention_forward, {2, 3}),
        (aten._scaled_dot_product_flash_attention_for_cpu, set()),
    ):
        assert describe(op.default).scratch_outputs == returns
    backward = describe(aten._scaled_dot_product_efficient_attention_backward.default)
    assert backward.scratch == {"philox_seed", "philox_offset"}


def test_ctc_leaves_bytes_unwritten_behind_short_targets(programs: Programs):
    """The second output, which backward reads, has no value; losses and gradients do."""
    lines = (
        "x = torch.randn(12, 2, 9).log_softmax(2).requires_grad_()",
        "loss = nn.CTCLoss()(x, torch.full((2, 5), 3), torch.tensor([12, 10]), torch.tensor([5, 3]))",
        "loss.backward()",
    )
    ran = run(programs, "\n".join(lines))
    forward, backward = one(ran, "aten._ctc_loss"), one(ran, "aten._ctc_loss_backward")
    assert [bool(write.value) for write in forward.writes] == [True, False]
    assert [read.flags for read in backward.reads if not read.value] == [UNREAD]
    assert ran.manifest["coverage"]["hashed"] == ran.manifest["coverage"]["operators"]


def test_a_librarys_scratch_memory_has_no_value(programs: Programs):
    """OneDNN's LSTM leaves bytes unwritten in the workspace that it hands to its backward."""
    ran = run(programs, "m = nn.LSTM(3, 4)\nm(torch.ones(2, 1, 3))[0].sum().backward()")
    forward, backward = one(ran, "aten.mkldnn_rnn_layer"), one(ran, "aten.mkldnn_rnn_layer_backward")
    assert (forward.writes[3].value, forward.writes[3].flags) == (0, 0)
    assert (backward.reads[-1].value, backward.reads[-1].flags) == (0, UNREAD)
    assert all(write.value for write in forward.writes[:3])
    assert ran.manifest["coverage"]["hashed"] == ran.manifest["coverage"]["operators"]
