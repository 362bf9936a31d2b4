"""The names and values that a run promises."""

from __future__ import annotations

import pytest

from .running import Programs

START = """
import copy
import torch
from torch import nn

def step(loss, *optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
"""


def test_names_of_parameters_buffers_and_optimizer_state(programs: Programs):
    """``model.<path>``, ``optimizer.<state>.<param>``, paired by (optimizer, group, index)."""
    ran = programs.run(
        f"""{START}
def main():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW([{{"params": model[1].parameters()}}, {{"params": model[0].parameters()}}])
    step(model(torch.randn(5, 4)).square().mean(), optimizer)
    return {{"accuracy": 0.5, "pair": (torch.ones(1), None)}}
"""
    )
    assert set(ran.contract("parameter")) == {f"model.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")}
    assert ran.contract("parameter")["model.0.weight"].key == "0.1.0"
    assert set(ran.contract("buffer")) == {
        f"model.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    }
    state = ran.contract("optimizer")
    assert {name for name in state if "exp_avg." in name} == {
        f"optimizer.exp_avg.model.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")
    }
    assert state["optimizer.exp_avg_sq.model.0.weight"].key == "0.exp_avg_sq.1.0"
    assert set(ran.contract("final")) == {"final.accuracy", "final.pair.0", "final.pair.1"}
    assert set(ran.contract("gradient", step=0)) == {"grad.0.0", "grad.0.1", "grad.1.0", "grad.1.1"}
    assert set(ran.contract("loss", step=0)) == {"loss"}
    assert set(ran.contract("rng")) == {"cpu"}


def test_teachers_and_averages_do_not_count_as_trained(programs: Programs):
    """Only modules with a parameter that is owned or got a gradient; frozen parameters of those do count."""
    ran = programs.run(
        f"""{START}
def main():
    student, teacher = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), nn.Linear(4, 3)
    student[0].requires_grad_(False)
    average = torch.optim.swa_utils.AveragedModel(student)
    optimizer = torch.optim.SGD(student[1].parameters(), 0.1)
    for _ in range(2):
        x = torch.randn(5, 4)
        with torch.no_grad():
            target = teacher(x)
            average(x)
        step((student(x) - target).square().mean(), optimizer)
        average.update_parameters(student)
"""
    )
    assert set(ran.contract("parameter")) == {f"model.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")}


def test_the_trained_model_is_named_first_even_if_it_is_called_second(programs: Programs):
    """A teacher that is called earlier does not move the names."""
    ran = programs.run(
        f"""{START}
def main():
    teacher, student = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    for _ in range(2):
        x = torch.randn(5, 4)
        step((student(x) - teacher(x).detach()).square().mean(), optimizer)
"""
    )
    assert set(ran.contract("parameter")) == {"model.weight", "model.bias"}


def test_a_shared_parameter_appears_once(programs: Programs):
    """Tied weights have one name."""
    ran = programs.run(
        f"""{START}
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, ids):
        return self.head(self.embed(ids))
def main():
    model = Tied()
    step(model(torch.arange(5)).square().mean(), torch.optim.SGD(model.parameters(), 0.1))
"""
    )
    assert set(ran.contract("parameter")) == {"model.embed.weight"}


def test_parameters_made_late_and_modules_replaced_are_followed(programs: Programs):
    """Lazy parameters get their names when they exist; a replaced module gives the place to its follower."""
    ran = programs.run(
        f"""{START}
def main():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    model(torch.randn(5, 4))
    for _ in range(2):
        step(model(torch.randn(5, 4)).square().mean(), torch.optim.SGD(model.parameters(), 0.1))
        model[1] = nn.Linear(3, 6)
"""
    )
    assert set(ran.contract("parameter")) == {f"model.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")}
    assert ran.contract("parameter")["model.1.weight"].reads[0].spec == "float32[6,3]"


def test_bare_parameters_without_a_module_are_named_by_their_place(programs: Programs):
    """``parameter.<optimizer>.<group>.<index>``."""
    ran = programs.run(
        f"""{START}
def main():
    w = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1, momentum=0.9)
    step(w.square().sum(), optimizer)
"""
    )
    assert set(ran.contract("parameter")) == {"parameter.0.0.0"}
    assert set(ran.contract("optimizer")) == {"optimizer.momentum_buffer.0.0"}


def test_parts_of_one_model_called_on_their_own_have_the_models_names(programs: Programs):
    """Calling encoder and decoder, not the model that holds them, still names all that was trained, once."""
    ran = programs.run(
        f"""{START}
def main():
    model = nn.ModuleDict({{"encoder": nn.Linear(4, 3), "decoder": nn.Linear(3, 4)}})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        step(model["decoder"](model["encoder"](torch.randn(5, 4))).square().mean(), optimizer)
"""
    )
    assert set(ran.contract("parameter")) == {"model.weight", "model.bias", "model.1.weight", "model.1.bias"}


def test_a_model_whose_layer_was_called_alone_first_keeps_its_whole_name(programs: Programs):
    """A warm-up of one layer does not make that layer the model."""
    ran = programs.run(
        f"""{START}
def main():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4))
    model[0](torch.randn(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        step(model(torch.randn(5, 4)).square().mean(), optimizer)
"""
    )
    assert set(ran.contract("parameter")) == {f"model.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")}


def test_two_models_and_two_optimizers(programs: Programs):
    """A GAN: the second model is ``model.1``, the second optimizer ``optimizer.1``."""
    ran = programs.run(
        f"""{START}
def main():
    g, d = nn.Linear(2, 3), nn.Linear(3, 1)
    og, od = (torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (g, d))
    for _ in range(2):
        fake = g(torch.randn(4, 2))
        step(d(fake.detach()).mean(), od)
        step(-d(fake).mean(), og)
"""
    )
    assert set(ran.contract("parameter")) == {f"model{n}.{p}" for n in ("", ".1") for p in ("weight", "bias")}
    assert set(ran.contract("loss", step=1)) == {"loss", "loss.1"} or set(ran.contract("loss", step=1)) == {"loss"}
    assert any(name.startswith("optimizer.1.momentum_buffer.") for name in ran.contract("optimizer"))


def test_everything_that_a_recipe_may_yield_is_flattened(programs: Programs):
    """Modules, optimizers, scalers, schedulers, generators, containers, dataclasses, arrays, numbers, text."""
    ran = programs.run(
        f"""{START}
import collections, dataclasses, enum
import numpy
@dataclasses.dataclass
class Metrics:
    loss: float
    seen: torch.Tensor
Pair = collections.namedtuple("Pair", "left right")
class Colour(enum.Enum):
    RED = 1
class Odd:
    __slots__ = ()
def main():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    step(model(torch.ones(1, 2)).sum(), optimizer)
    yield {{
        "loss": torch.tensor(1.0), "model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cpu"),
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3), "generator": torch.Generator(),
        "nested": {{"list": [1, (2.0, True)], 3: "text"}}, "metrics": Metrics(0.5, torch.ones(2)),
        "array": numpy.arange(3), "scalar": numpy.float32(2), "bytes": b"x", "nothing": None, "set": {{3, 1, 2}},
        "pair": Pair(1, 2), "complex": 1j, "colour": Colour.RED, "odd": Odd(), "strings": numpy.array(["a", "b"]),
    }}
"""
    )
    assert ran.ok, ran.answer
    names = set(ran.contract())
    assert names >= {
        "loss",
        "model.weight",
        "grad.model.weight",
        "optimizer.exp_avg.weight",
        "nested.list.0",
        "nested.list.1.1",
        "nested.3",
        "metrics.loss",
        "metrics.seen",
        "array",
        "scalar",
        "bytes",
        "nothing",
        "set.0",
        "pair.left",
        "complex",
        "colour",
        "odd",
        "generator",
        "schedule.last_epoch",
        "strings",
    } or names >= {"optimizer.exp_avg.model.weight"}
    assert ran.contract()["generator"].op == "rng"
    assert not any("0x" in name for name in names)


def test_a_cycle_in_what_is_yielded_ends(programs: Programs):
    """A list that holds itself does not hang the run."""
    ran = programs.run("def main():\n    held = [1]\n    held.append(held)\n    yield {'held': held}\n")
    assert ran.ok


def test_level_contract_promises_the_same_values(programs: Programs):
    """Same names, values and digests as ``full``, and no operator recorded."""
    source = f"""{START}
def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        step(model(torch.randn(5, 4)).square().mean(), optimizer)
    return torch.ones(2)
"""
    full, contract = programs.run(source), programs.run(source, level="contract")
    assert contract.events() == []
    assert contract.manifest["coverage"]["operators"] == 0
    sections = ("loss", "gradients", "parameters", "buffers", "optimizer", "rng", "final", "contract")
    for left, right in zip(full.digests, contract.digests, strict=True):
        assert {s: left.get(s) for s in sections} == {s: right.get(s) for s in sections}
    assert all("parameters" in digests for digests in full.digests[:-1])


@pytest.mark.parametrize("level", ["full", "op", "contract"])
def test_the_last_step_of_a_function_that_has_returned(level: str, programs: Programs):
    """What its optimizer left, and what recorded operators did to it afterwards, though all is gone by then."""
    ran = programs.run(
        f"""{START}
def main(mark):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    for i in range(2):
        mark(i)
        step(model(torch.randn(5, 4)).square().mean(), optimizer)
        with torch.no_grad():
            model[0].weight.clamp_(-0.1, 0.1)
""",
        level=level,
    )
    for section in ("parameter", "buffer", "optimizer"):
        assert set(ran.contract(section, step=1)) == set(ran.contract(section, step=0)) != set()
    if level != "contract":
        weight = ran.contract("parameter", step=1)["model.0.weight"]
        (clamped,) = ran.events("aten.clamp_", step=1)
        assert weight.reads[0].value == clamped.writes[0].value
        assert weight.reads[0].writers == (clamped.index,)


def test_nothing_that_training_made_is_kept_alive(programs: Programs):
    """Modules, optimizers, losses and tensors die when the target lets go of them, as they do bare."""
    ran = programs.run(
        f"""{START}
import gc, weakref
def once():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(5, 4)).square().mean()
    step(loss, optimizer)
    extra = torch.ones(5) * 2
    average = optimizer.state[model[0].weight]["exp_avg"]
    return [weakref.ref(x) for x in (model, optimizer, loss, extra, model[0].weight, average)]
def main():
    refs = once()
    gc.collect()
    print([ref() is None for ref in refs])
"""
    )
    assert ran.stdout == f"{[True] * 6}\n"
