"""What a case program says must be found, and what a verdict about it gets wrong. Imports no torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
"""The programs that were handed over."""
MORE = Path(__file__).parent / "more"
"""Programs of our own, of the same kinds, each of which showed something that the handed ones did not."""

CAUSES: dict[str, set[str]] = {
    "args": {"arguments"},
    "values": {"kernel"},
    "rng": {"random"},
    "inputs": {"inputs", "data", "state"},
    "outside-write": {"overwritten"},
    "hidden-mutation": {"hidden-mutation"},
    "ops": {"code", "missing"},
    "state-only": {"state", "overwritten"},
}
"""The causes that are right for an EXPECT_VERDICT that says the runs diverged."""

BOTH_SIDES = {"overwritten", "hidden-mutation", "uninitialised"}
"""Causes that keep their name when reference and candidate are swapped, and then point at the reference."""

ALLOCATIONS = ("empty", "resize_")
DRAWS = ("rand", "bernoulli", "uniform_", "normal", "exponential_", "dropout", "multinomial")


@dataclass(frozen=True, slots=True)
class Case:
    """One program of ``data`` with its constants."""

    name: str
    path: Path
    constants: dict[str, Any]
    functions: frozenset[str]

    @property
    def verdict(self) -> str:
        """EXPECT_VERDICT."""
        return str(self.constants["EXPECT_VERDICT"])

    @property
    def is_pair(self) -> bool:
        """Whether the program has ``good`` and ``bad``, and not one ``run`` that differs from itself."""
        return "good" in self.functions

    @property
    def attempts(self) -> int:
        """How often the effect may be looked for."""
        return 3 if self.constants.get("RACY") else 1

    @property
    def operators(self) -> set[str]:
        """The operators of which one must be named, without overload."""
        names = [self.constants.get("EXPECT_OP"), self.constants.get("EXPECT_OP_GOOD")]
        return {base_name(name) for name in (*names, *self.constants.get("ACCEPT_OPS", ())) if name}

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of which one must be named."""
        return tuple(self.constants.get("EXPECT_STEP_ANY", (self.constants.get("EXPECT_STEP"),)))


def load_case(path: Path) -> Case:
    """The case in a file, read without running it."""
    tree = ast.parse(path.read_text())
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.startswith(("EXPECT_", "ACCEPT_")) or name in {"MODE", "RACY", "KIND"}:
                constants[name] = _constant(node.value)
    functions = frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return Case(path.stem, path, constants, functions)


def all_cases() -> list[Case]:
    """Every case program, by name."""
    return [load_case(path) for path in sorted(DATA.glob("[a-f]_*.py"))]


def more_cases() -> list[Case]:
    """Every program of our own, by name."""
    return [load_case(path) for path in sorted(MORE.glob("*.py"))]


def base_name(op: str) -> str:
    """``aten::mul.Tensor`` and ``aten.mul.Scalar`` are both ``aten.mul``."""
    return ".".join(op.replace("::", ".").split(".")[:2])


def problems(
    case: Case, verdict: dict[str, Any], findings: list[dict[str, Any]], *, swapped: bool = False
) -> list[str]:
    """What is wrong with a verdict about a case; empty if it is right.

    ``verdict`` is the object that compare prints, ``findings`` those of the single run of ``bad``.
    """
    expected, said = case.verdict, verdict["verdict"]
    first = verdict.get("first_divergence")
    if expected == "none":
        return [] if said in {"identical", "equivalent"} else [f"verdict {said}, expected identical or equivalent"]
    if expected == "transient":
        wrong = [] if said == "equivalent" else [f"verdict {said}, expected equivalent"]
        found = any(not _place_problems(case, entry) for entry in verdict["transient"])
        return wrong if found else [*wrong, f"transient does not list {sorted(case.operators)} in step {case.steps}"]
    if expected == "observer" and said == "untestable":
        return []
    if said not in ({"diverged"} if case.is_pair else {"diverged", "unstable"}):
        return [f"verdict {said}, expected diverged"]
    wrong = _place_problems(case, first)
    if expected == "observer":
        return wrong
    if first["cause"] not in _causes(case):
        wrong.append(f"cause {first['cause']}, expected {sorted(_causes(case))}")
    if swapped and first["cause"] in BOTH_SIDES and first["side"] != "reference":
        wrong.append(f"side {first['side']}, expected reference")
    if expected in {"outside-write", "hidden-mutation"}:
        seen = [entry for entry in findings if entry["cause"] in CAUSES[expected] and not _place_problems(case, entry)]
        if not seen:
            wrong.append(f"the single run of bad has no such finding: {[(f['cause'], f['op']) for f in findings]}")
    return [*wrong, *_evidence_problems(first)]


def _causes(case: Case) -> set[str]:
    causes = set(CAUSES[case.verdict])
    origin = case.constants.get("EXPECT_ORIGIN_OP")
    if case.verdict == "inputs" and origin and base_name(origin).split(".")[1].startswith(ALLOCATIONS):
        causes = {"uninitialised"}
    accepted = [base_name(op).split(".")[1] for op in case.constants.get("ACCEPT_OPS", ())]
    if case.verdict == "ops" and any(name.startswith(DRAWS) for name in accepted):
        causes.add("random")
    return causes


def _place_problems(case: Case, entry: dict[str, Any]) -> list[str]:
    wrong = []
    named = [base_name(op) for op in (entry["op"], entry.get("computes")) if op]
    if case.operators and not case.operators & set(named):
        wrong.append(f"op {' / '.join(named)}, expected {' or '.join(sorted(case.operators))}")
    if entry["step"] not in case.steps:
        wrong.append(f"step {entry['step']}, expected {' or '.join(map(str, case.steps))}")
    return wrong


def _evidence_problems(first: dict[str, Any]) -> list[str]:
    """A kernel or an argument is only to blame where both sides are shown to have read the same."""
    if first["cause"] not in {"kernel", "arguments"}:
        return []
    inputs = (first.get("evidence") or {}).get("inputs")
    if inputs is None:
        return [f"cause {first['cause']} without the input fingerprints of both sides"]
    unequal = [entry["name"] for entry in inputs if not entry["equal"] or entry["reference"] != entry["candidate"]]
    return [f"cause {first['cause']}, and inputs {unequal} are not shown equal"] if unequal else []


def _constant(node: ast.expr) -> Any:
    return eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})
