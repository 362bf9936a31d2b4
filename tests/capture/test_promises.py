"""What a recipe says of its contract: numbers are kept beside the trace, patterns must fit something."""

from __future__ import annotations

import struct

import numpy as np

from tests.capture.running import Programs, Ran

HEAD = "import torch\nfrom opguard_ci import recipe, rtol, ulp\n"


def numbers(ran: Ran, name: str, step: int) -> bytes | None:
    """The numbers of a contract value."""
    read = ran.contract(step=step)[name].reads[0]
    return ran.trace.numbers(read.value, read.spec)


def test_what_is_named_is_kept(programs: Programs):
    """Tensors in logical order, Python's floats as float64; what is not named, and whole numbers, are not."""
    ran = programs.run(
        HEAD + "@recipe(steps=2, tolerance={'loss': ulp(2), 'a.*': rtol(1e-6)})\n"
        "def main():\n"
        "    for step in range(2):\n"
        "        yield {'loss': step + 0.5, 'a': {'t': torch.arange(6.).view(2, 3).t() + step, 'n': 3,\n"
        "               'h': torch.ones(2, dtype=torch.bfloat16), 'e': torch.ones(0), 'c': 1j}, 'b': torch.ones(2)}\n"
    )
    assert ran.ok
    assert numbers(ran, "loss", 0) == struct.pack("=d", 0.5)
    assert numbers(ran, "loss", 1) == struct.pack("=d", 1.5)
    assert numbers(ran, "a.t", 0) == np.arange(6, dtype=np.float32).reshape(2, 3).T.tobytes()
    assert numbers(ran, "a.h", 0) == struct.pack("=2H", 0x3F80, 0x3F80)
    assert numbers(ran, "a.c", 0) == struct.pack("=2d", 0.0, 1.0)
    assert numbers(ran, "a.n", 0) is None
    assert numbers(ran, "b", 0) is None
    assert ran.manifest["tolerance"] == {"loss": {"ulp": 2}, "a.*": {"rtol": 1e-6}}
    assert "Tolerance of the recipe: loss ulp(2), a.* rtol(1e-06)." in ran.manifest["notes"]


def test_the_same_value_is_kept_once(programs: Programs):
    """However many steps have it; the limit counts it once, too."""
    ran = programs.run(
        HEAD + "@recipe(steps=30, tolerance={'x': ulp(1)})\n"
        "def main():\n"
        "    while True: yield {'x': torch.rand(1 << 20, generator=torch.Generator().manual_seed(0))}\n"
    )
    assert ran.ok
    assert (ran.folder / "values-0.arrows").stat().st_size < 5 << 20


def test_a_pattern_that_fits_nothing_is_an_error(programs: Programs):
    """It names the pattern, and what there is; a run that was cut short by --steps may not have come to it."""
    source = (
        HEAD + "@recipe(steps=2, tolerance={'los': ulp(2), 'late': ulp(2)})\n"
        "def main():\n"
        "    yield {'loss': torch.ones(1)}\n"
        "    yield {'loss': torch.ones(1), 'late': torch.ones(1)}\n"
    )
    ran = programs.run(source)
    assert ran.answer["slug"] == "tolerance-unmatched"
    assert "'los'" in ran.answer["message"]
    assert "'late'" not in ran.answer["message"]
    assert "loss" in ran.answer["message"]
    assert programs.again("program.py:main", steps=1).ok


def test_more_numbers_than_a_trace_may_hold_are_refused(programs: Programs):
    """With the name of the value that was too much."""
    ran = programs.run(
        HEAD + "@recipe(steps=2, tolerance={'x': ulp(1)})\n"
        "def main():\n"
        "    while True: yield {'x': torch.rand(9 << 20)}\n"
    )
    assert ran.answer["slug"] == "tolerance-too-large"
    assert "'x'" in ran.answer["message"]


def test_what_is_declared_unstable_must_be_there(programs: Programs):
    """A name of the contract or an operator; at level contract, where no operator is seen, nothing is asked."""
    source = (
        HEAD + "@recipe(steps=1, unstable={'loss': 'a', 'aten.ones.*': 'b', 'aten.gone.*': 'c'})\n"
        "def main():\n"
        "    yield {'loss': torch.ones(1)}\n"
    )
    ran = programs.run(source)
    assert ran.answer["slug"] == "unstable-unmatched"
    assert "'aten.gone.*'" in ran.answer["message"]
    assert "'aten.ones.*'" not in ran.answer["message"]
    assert programs.again("program.py:main", level="contract").ok
    good = programs.run(source.replace(", 'aten.gone.*': 'c'", ""))
    assert good.ok
    assert good.manifest["unstable"] == {"loss": "a", "aten.ones.*": "b"}
    assert "Declared unstable and not judged: loss (a)." in good.manifest["notes"]
