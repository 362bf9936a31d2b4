"""Changes to a program: neutral ones, which must not matter, and faults, of which the verdict must name the place."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from .programs import INPUT, KINDS, SPECIAL, Node, Program, is_random, random_settings
from .running import Fault

# Neutral edits


def edited(rng: random.Random, program: Program) -> Program:
    """The program after one to four neutral edits."""
    for edit in rng.choices(_EDITS, k=rng.randint(1, 4)):
        program = edit(rng, program)
    return program


def _new_number(program: Program) -> int:
    return max(1000, *(node.number + 1 for node in program.nodes))


def _pass_through(rng: random.Random, program: Program) -> Program:
    """Something that leaves the bits alone between two nodes."""
    position = rng.randrange(len(program.nodes))
    reader = program.nodes[position]
    if not reader.inputs:
        return program
    number = _new_number(program)
    slot = rng.randrange(len(reader.inputs))
    op = rng.choice(("clone", "views", "double", "times_one"))
    node = Node(number, op, (reader.inputs[slot],))
    inputs = (*reader.inputs[:slot], number, *reader.inputs[slot + 1 :])
    nodes = (*program.nodes[:position], node, replace(reader, inputs=inputs), *program.nodes[position + 1 :])
    return replace(program, nodes=nodes)


def _dead(rng: random.Random, program: Program) -> Program:
    """A node that nobody reads."""
    plain = [
        op
        for op, kind in KINDS.items()
        if op not in SPECIAL and not is_random(Node(0, op, ())) and not kind.parameters and not kind.buffers
    ]
    op = rng.choice(plain)
    position = rng.randint(0, len(program.nodes))
    known = [INPUT, *(node.number for node in program.nodes[:position])]
    inputs = tuple(rng.choice(known) for _ in range(KINDS[op].inputs))
    node = Node(_new_number(program), op, inputs, random_settings(rng, op))
    return replace(program, nodes=(*program.nodes[:position], node, *program.nodes[position:]))


def _forked_draw(rng: random.Random, program: Program) -> Program:
    """A draw whose effect on the generator is undone."""
    position = rng.randint(0, len(program.nodes))
    known = [INPUT, *(node.number for node in program.nodes[:position])]
    node = Node(_new_number(program), "forked_draw", (rng.choice(known),), random_settings(rng, "forked_draw"))
    return replace(program, nodes=(*program.nodes[:position], node, *program.nodes[position:]))


def _rename(rng: random.Random, program: Program) -> Program:
    return replace(program, prefix=rng.choice(("layer", "block", "m")))


def _reorder(rng: random.Random, program: Program) -> Program:
    """Swap two neighbours that do not read each other and do not both draw."""
    position = rng.randrange(len(program.nodes) - 1)
    first, second = program.nodes[position : position + 2]
    if first.number in second.inputs or (is_random(first) and is_random(second)):
        return program
    return replace(program, nodes=(*program.nodes[:position], second, first, *program.nodes[position + 2 :]))


def _move(rng: random.Random, program: Program) -> Program:
    """Let a node run inside a module of its own."""
    node = rng.choice(program.nodes)
    return program.with_node(replace(node, helper=True))


def _foreach(rng: random.Random, program: Program) -> Program:
    """Exchange for-loops and their ``_foreach`` forms."""
    for node in program.nodes:
        if node.op == "foreach":
            program = program.with_node(replace(node, settings={**node.settings, "loop": not node.settings["loop"]}))
    return replace(program, foreach=not program.foreach)


_EDITS = (_pass_through, _pass_through, _dead, _forked_draw, _rename, _reorder, _reorder, _move, _foreach)


# Faults

KERNEL = ("ulp", "zero", "negate")
FAULTS = (
    *KERNEL, "settings", "lr", "operand", "swapped", "draw", "skip", "foreign", "hidden", "replaced",
)  # fmt: skip

CAUSES: dict[str, frozenset[str]] = {
    **dict.fromkeys(KERNEL, frozenset(("kernel",))),
    "settings": frozenset(("arguments",)),
    "lr": frozenset(("arguments",)),
    "operand": frozenset(("inputs", "data", "state")),
    "swapped": frozenset(("inputs", "data", "state")),
    "draw": frozenset(("random",)),
    "skip": frozenset(("missing", "uninitialised")),
    "foreign": frozenset(("overwritten",)),
    "hidden": frozenset(("hidden-mutation",)),
    "replaced": frozenset(("code", "missing")),
}
"""The causes that are right for each kind of fault."""

_ALIKE = (
    ("tanh", "relu"), ("add", "sub"), ("mul", "div"), ("softmax", "cumsum"), ("tanh", "gelu"),
)  # fmt: skip


def prepared(rng: random.Random, kind: str, program: Program) -> tuple[Program, int] | None:
    """The program with a place for a fault of this kind, and the number of the node; None if it has none.

    What is added here does nothing until a fault hits it.
    """
    originals = [node for node in program.nodes if node.number < 1000]
    if kind in ("draw", "foreign"):
        number = _new_number(program) + 1000
        position = rng.randint(1, len(program.nodes))
        # Memory that was written in pieces is not watched before it was read as a whole.
        known = [INPUT, *(node.number for node in program.nodes[:position] if node.op != "slices")]
        op = "extra_draw" if kind == "draw" else "foreign"
        node = Node(number, op, (rng.choice(known),), random_settings(rng, op))
        return replace(program, nodes=(*program.nodes[:position], node, *program.nodes[position:])), number
    able = {
        "settings": lambda n: bool(_arguments(n)),
        "operand": lambda n: bool(n.inputs),
        "swapped": lambda n: len(n.inputs) == 2 and n.inputs[0] != n.inputs[1],
        "skip": lambda n: KINDS[n.op].skippable,
        "hidden": lambda n: n.op == "custom",
        "replaced": lambda n: any(n.op in pair for pair in _ALIKE),
    }.get(kind, lambda n: True)
    found = [node for node in originals if able(node)]
    return (program, rng.choice(found).number) if found else None


def _arguments(node: Node) -> list[tuple[str, tuple[Any, ...]]]:
    """The settings that are an operator's argument, with their choices."""
    return [item for item in KINDS[node.op].settings.items() if item[0] not in ("zeros", "rows", "loop")]


def random_fault(
    rng: random.Random, kind: str, program: Program, number: int, calls: list[tuple[int, str]]
) -> Fault | None:
    """A fault of a kind at a node. ``calls``: of which operators the output may be changed, for kinds that do that."""
    step = rng.randrange(program.steps)
    node = program.node(number) if number >= 0 else None
    if kind in KERNEL:
        if not calls:
            return None
        call, op = rng.choice(calls)
        return Fault(kind, call=call, op=op)
    if kind == "lr":
        return Fault(kind, step=step, settings={"lr": program.lr * 2})
    assert node is not None
    if kind == "settings":
        name, choices = rng.choice(_arguments(node))
        return Fault(kind, number, step, {name: rng.choice([c for c in choices if c != node.settings[name]])})
    if kind == "operand":
        before = [INPUT, *(n.number for n in program.nodes[: program.nodes.index(node)])]
        slot = rng.randrange(len(node.inputs))
        others = [n for n in before if n < 1000 and n != node.inputs[slot]]
        if not others:
            return None
        return Fault(kind, number, step, inputs=(*node.inputs[:slot], rng.choice(others), *node.inputs[slot + 1 :]))
    if kind == "swapped":
        return Fault(kind, number, step, inputs=node.inputs[::-1])
    if kind == "skip":
        return Fault(kind, number, step, {"skip": True})
    if kind == "hidden":
        return Fault(kind, number, step, {"hidden": True})
    if kind == "replaced":
        op = rng.choice([other for pair in _ALIKE if node.op in pair for other in pair if other != node.op])
        return Fault(kind, number, step, {"op": op, **random_settings(rng, op)})
    return Fault(kind, number, step, once=rng.random() < 0.5)
