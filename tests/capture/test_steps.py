"""Where steps begin and end, by yields, marks or optimizers."""

from __future__ import annotations

import pytest

from .running import Programs

START = """
import torch
from torch import nn
from opguard_ci import mark_step

def setup():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1)

def turn(model, optimizer):
    loss = model(torch.randn(3, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""


def test_a_step_ends_when_the_optimizer_stepped(programs: Programs):
    """Plain functions, with no line changed: three steps, and what is left at the end."""
    ran = programs.run(f"{START}\ndef main():\n    m, o = setup()\n    for _ in range(3): turn(m, o)\n")
    assert ran.steps == [0, 1, 2, 3]
    assert [event.step for event in ran.events("aten.addmm")] == [0, 1, 2]
    assert {event.phase for event in ran.events("aten.add_", step=1)} == {"optimizer"}
    assert all(event.phase == "backward" for event in ran.events("aten.mse_loss_backward"))


def test_the_optimizer_that_stepped_first_rules(programs: Programs):
    """A second optimizer, of a discriminator say, ends no step."""
    ran = programs.run(
        f"""{START}
def main():
    g, go = setup()
    d, do = setup()
    for _ in range(2):
        turn(d, do)
        turn(d, do)
        turn(g, go)
"""
    )
    assert len(ran.steps) == 5  # four of the first optimizer, and the rest
    assert set(ran.contract("parameter")) == {"model.weight", "model.bias", "model.1.weight", "model.1.bias"}


def test_mark_step_overrides_the_optimizer(programs: Programs):
    """What ran before ``mark_step(0)`` is step -1, ``setup``; gradient accumulation makes no steps."""
    ran = programs.run(
        f"""{START}
def main():
    m, o = setup()
    torch.ones(2) + 1
    for step in range(2):
        mark_step(step)
        turn(m, o)
        turn(m, o)
"""
    )
    assert ran.steps == [-1, 0, 1]
    assert {event.phase for event in ran.events(step=-1)} == {"setup"}
    assert [event.step for event in ran.events("aten.addmm")] == [0, 0, 1, 1]


def test_a_parameter_named_mark_is_the_same(programs: Programs):
    """The function is handed ``mark``; the setup before it is step -1 even if an optimizer steps there."""
    ran = programs.run(
        f"""{START}
def main(mark):
    m, o = setup()
    turn(m, o)
    for step in range(2):
        mark(step)
        turn(m, o)
"""
    )
    assert ran.steps == [-1, 0, 1]
    assert len(ran.events("aten.addmm", step=-1)) == 1


@pytest.mark.parametrize(
    ("marks", "slug"), [("mark_step(0); mark_step(0)", "mark-order"), ("mark_step(2); mark_step(1)", "mark-order")]
)
def test_steps_must_count_up(marks: str, slug: str, programs: Programs):
    """A mark that goes back is an error of the target."""
    ran = programs.run(f"from opguard_ci import mark_step\ndef main():\n    {marks}\n")
    assert (ran.answer["status"], ran.answer["slug"]) == ("untestable", slug)


def test_the_first_mark_must_come_before_the_first_step_ends(programs: Programs):
    """Two rules cannot both number the steps."""
    ran = programs.run(f"{START}\ndef main():\n    m, o = setup()\n    turn(m, o)\n    mark_step(0)\n")
    assert ran.answer["slug"] == "mark-too-late"


def test_marks_may_leave_numbers_out(programs: Programs):
    """Somebody may trace every tenth step only."""
    ran = programs.run(
        "from opguard_ci import mark_step\nimport torch\ndef main():\n"
        "    for step in (0, 10, 20):\n        mark_step(step)\n        torch.ones(2) * step\n"
    )
    assert ran.steps == [-1, 0, 10, 20]


def test_mark_step_outside_of_a_run_does_nothing(programs: Programs):
    """Training scripts keep their marks when nobody watches."""
    assert programs.run(f"{START}\ndef main():\n    mark_step(0)\n    print('fine')\n", bare=True).stdout == "fine\n"


def test_a_step_that_a_grad_scaler_skips_counts(programs: Programs):
    """An infinite gradient: the optimizer does not run, the step ends all the same."""
    ran = programs.run(
        f"""{START}
def main():
    m, o = setup()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        o.zero_grad()
        loss = m(torch.randn(3, 4)).square().mean() * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(o)
        scaler.update()
"""
    )
    assert ran.ok, ran.answer
    assert ran.steps == [0, 1, 2, 3]
    assert ran.digests[0]["parameters"] == ran.digests[0]["parameters"]
    assert ran.digests[1]["parameters"] == ran.digests[0]["parameters"] != ran.digests[2]["parameters"]


def test_an_optimizer_with_a_closure_makes_one_step(programs: Programs):
    """LBFGS calls its closure many times in one step."""
    ran = programs.run(
        f"""{START}
def main():
    m, _ = setup()
    o = torch.optim.LBFGS(m.parameters(), max_iter=4)
    x = torch.randn(3, 4)
    def closure():
        o.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        return loss
    for _ in range(2):
        o.step(closure)
"""
    )
    assert ran.ok, ran.answer
    assert ran.steps == [0, 1, 2]
    assert len(ran.events("aten.addmm", step=0)) >= 4
    assert ran.contract("loss", step=0).keys() >= {"loss", "loss.1"}


def test_an_optimizer_that_raises_leaves_the_phase(programs: Programs):
    """What runs after a step that failed is not counted as optimizer."""
    ran = programs.run(
        f"""{START}
class Bad(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("bad")
def main():
    m, _ = setup()
    o = Bad(m.parameters(), 0.1)
    try:
        o.step()
    except ValueError:
        pass
    torch.ones(2) * 3
"""
    )
    assert [event.phase for event in ran.events("aten.mul")] == ["forward"]


def test_a_run_without_steps_is_step_0_and_says_so(programs: Programs):
    """No yield, no mark, no optimizer."""
    ran = programs.run("import torch\ndef main():\n    return torch.ones(2) + 1\n")
    assert ran.steps == [0]
    assert any("No step was seen" in note for note in ran.manifest["notes"])
    assert set(ran.contract("final")) == {"final"}


def test_yields_rule_over_optimizers_and_backward(programs: Programs):
    """In a generator only yields end steps, and only what is yielded is promised."""
    ran = programs.run(
        f"""{START}
def main():
    m, o = setup()
    for _ in range(2):
        turn(m, o)
        loss = turn(m, o)
        yield {{"loss": loss, "net": m, "extra": {{"a": [1, 2.5], "b": torch.ones(2)}}, "aux_loss": loss * 2}}
"""
    )
    assert ran.steps == [0, 1]
    assert set(ran.contract("loss", step=0)) == {"loss", "aux_loss"}
    assert set(ran.contract("value", step=0)) == {"extra.a.0", "extra.a.1", "extra.b"}
    assert set(ran.contract("parameter", step=0)) == {"net.weight", "net.bias"}


def test_marks_inside_a_recipe_end_steps(programs: Programs):
    """A generator that marks its steps is followed by its marks, and its yields are recorded."""
    ran = programs.run(
        "from opguard_ci import mark_step\nimport torch\ndef main():\n    for step in range(2):\n"
        "        mark_step(step)\n        yield {'value': torch.ones(2) * step}\n"
    )
    assert ran.ok, ran.answer
    assert "value" in ran.contract("value", step=0)


def test_phases_of_a_step(programs: Programs):
    """data: inside a loader's next; backward: with the forward's place; optimizer."""
    ran = programs.run(
        f"""{START}
from torch.utils.data import DataLoader, TensorDataset
def main():
    m, o = setup()
    for (x,) in DataLoader(TensorDataset(torch.randn(6, 4)), 3):
        o.zero_grad()
        m(x).sum().backward()
        o.step()
"""
    )
    phases = {event.op: event.phase for event in ran.events(step=1)}
    assert phases["aten.stack.default"] == "data"
    assert phases["aten.addmm.default"] == "forward"
    assert phases["aten.mm.default"] == "backward"
    assert phases["aten.add_.Tensor"] == "optimizer"
