"""An investigation as one Markdown report: what was observed, the mechanism it suggests, how to validate that. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.attribution import attribution_lines
from opguard_ci.report.clean import clean, clean_lines
from opguard_ci.report.divergence import divergence_block, place, step_name
from opguard_ci.report.layout import plain
from opguard_ci.report.words import CAUSES, VERDICTS

_MAX_NAMES: Final = 12
_MAX_FIELDS: Final = 12

_VALIDATE: Final = {
    "arguments": "Call the operator in B with A's arguments (the source line is shown above) and investigate again. "
    "The mechanism is right if this divergence is gone.",
    "kernel": "Take the differences between the environments away one at a time, as below. If none is left, run both "
    "with one thread and with `--profile strict`. What makes the difference go away is the cause.",
    "random": "Seed the generator in both right before the operator. The mechanism is right if the draws agree from "
    "there on; then look for the draw that only one of the two makes before it.",
    "data": "Save the batch of A to a file and read it in B. The mechanism is right if the divergence is gone; then "
    "compare how the two make it: order of files, workers, transforms.",
    "state": "Save A's state right after set-up (`torch.save(model.state_dict(), …)`) and load it in B at the same "
    "place. The mechanism is right if the divergence is gone.",
    "inputs": "Give the operator in B the operand that A gives it. The mechanism is right if the divergence is gone.",
    "code": "Put A's operators in the place of B's at the source line shown. The mechanism is right if the divergence "
    "is gone or moves to a later operator.",
    "missing": "Add the operators that only A executes to B. The mechanism is right if the divergence is gone.",
    "overwritten": "Copy the tensor (`.clone()`) right after it is written. The mechanism is right if the operator "
    "then reads the same values in both.",
    "uninitialised": "Replace the allocation by `torch.zeros`. The mechanism is right if both sides then agree, and "
    "repeat themselves.",
    "hidden-mutation": "Give the operator a copy of the argument that it changes. The mechanism is right if the "
    "divergence is gone.",
    "collective": "Fix the algorithm and the protocol of the collective (NCCL_ALGO, NCCL_PROTO) in both. The mechanism "
    "is right if the divergence is gone.",
}


def investigation_report(document: Mapping[str, Any]) -> str:
    """The report as Markdown; whatever comes from the runs stands in code spans and blocks, where it is only text."""
    first = document.get("first_divergence")
    verdict = clean(document["verdict"])
    lines = [f"# Investigation: {verdict}" + (f" at {_code(place(first))}" if first else ""), ""]
    lines += ["## What was observed", "", *_sides(document), ""]
    if error := document.get("error"):
        lines += [f"{_code(error['slug'])}: {_code(error['message'])}", "", *_block(clean_lines(error["traceback"]))]
    elif first:
        lines += _block(plain(divergence_block(first)).splitlines())
    else:
        lines += [f"{verdict}: {VERDICTS.get(verdict, '')}.", ""]
    lines += _contract(document.get("contract") or ())
    if told := attribution_lines(document):
        lines += _block(plain(told).strip("\n").splitlines())
    lines += [f"- {_code(note)}" for note in document.get("notes") or ()] + [""]
    if first:
        lines += ["## The mechanism it suggests", "", *_mechanism(document, first), ""]
        lines += ["## How to validate it", "", *_validation(document, first), ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip("\n") + "\n"


def _sides(document: Mapping[str, Any]) -> list[str]:
    a, b = document["a"], document["b"]
    rows = ["| | A | B |", "|---|---|---|"]

    def row(name: str, values: Sequence[str]) -> None:
        if any(values):
            rows.append(f"| {name} | {' | '.join(_code(value) if value else '' for value in values)} |")

    row("command", [side["command"] for side in (a, b)])
    row("Python", [side["python"] for side in (a, b)])
    row("variables", [_assignments(side["variables"]) for side in (a, b)])
    row("torch", [(side.get("environment") or {}).get("document", {}).get("torch", "") for side in (a, b)])
    row("environment", [str((side.get("environment") or {}).get("key") or "") for side in (a, b)])
    row("run twice", [(side.get("replay") or {}).get("verdict", "") for side in (a, b)])
    return rows


def _contract(contract: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(str(value["name"]) for value in contract if not value.get("equal")))
    if not names:
        return []
    step = min(int(value["step"]) for value in contract if not value.get("equal"))
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    shown = ", ".join(_code(name) for name in names[:_MAX_NAMES])
    return [f"Of what training leaves behind, first different in {step_name(step)}: {shown}{more}.", ""]


def _mechanism(document: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    cause = clean(first.get("cause"))
    lines = []
    if document["verdict"] == "unstable":
        lines += ["One of the two does not repeat itself: two runs of it part here.", ""]
    lines += [CAUSES.get(cause, "No rule has a name for it.")]
    if detail := first.get("detail"):
        lines[-1] += f" Here: {_code(detail)}."
    parts = document.get("attribution")
    if parts and document["verdict"] == "diverged":
        by = [name for name in ("environment", "code") if parts[name]["verdict"] == "diverged"]
        said = {
            ("environment",): "The command of A, run with the Python and the variables of B, gives what B gives: the "
            "environment makes the difference.",
            ("code",): "The command of A gives the same with the Python and the variables of B: the environment is "
            "innocent.",
            ("environment", "code"): "Both have a part: the command of A already gives other numbers with the Python "
            "and the variables of B, and the command of B others again.",
        }
        lines += ["", said.get(tuple(by), "")]
    if differs := _differs(document):
        lines += ["", "The environments differ in:", "", *(f"- {_code(line)}" for line in differs)]
    return lines


def _validation(document: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    steps = []
    if text := _VALIDATE.get(clean(first.get("cause"))):
        steps.append(text)
    a, b = document["a"], document["b"]
    if document["verdict"] == "unstable":
        name = "a" if a["replay"]["verdict"] == "unstable" else "b"
        steps.append(
            f"Make {name.upper()} repeat itself first: {_code(_replay(document[name]))} pins all that can be pinned. "
            "If that cures it, one of the pins is the cause."
        )
        return [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    for name in sorted({*a["variables"], *b["variables"]}):
        if a["variables"].get(name) != b["variables"].get(name):
            value = a["variables"].get(name)
            if value is None:
                changed = {key: text for key, text in b["variables"].items() if key != name}
            else:
                changed = {**b["variables"], name: value}
            command = _command(a, {**b, "variables": changed})
            steps.append(
                f"B with A's {_code(name)}: {_code(command)}. What the environment changes is gone then, if it is that "
                "variable."
            )
    steps.append(f"The same again: {_code(_command(a, b))}")
    return [f"{number}. {step}" for number, step in enumerate(steps, 1)]


def _differs(document: Mapping[str, Any]) -> list[str]:
    if parts := document.get("attribution"):
        differs = [str(line) for line in parts["environment"]["differs"]]
        more = [f"{len(differs) - _MAX_FIELDS} more"] if len(differs) > _MAX_FIELDS else []
        return differs[:_MAX_FIELDS] + more
    return []


def _command(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    words = ["opguard", "investigate", "--a", a["command"], "--b", b["command"]]
    for name, side in (("a", a), ("b", b)):
        if not side["own_python"]:
            words += [f"--python-{name}", side["python"]]
        for variable, value in side["variables"].items():
            words += [f"--env-{name}", f"{variable}={value}"]
    return shlex.join(words)


def _replay(side: Mapping[str, Any]) -> str:
    target, *argv = shlex.split(side["command"])
    words = ["opguard", "replay", target, "--profile", "strict"]
    return " ".join([*(shlex.quote(f"{k}={v}") for k, v in side["variables"].items()),
                     shlex.join([*words, "--", *argv] if argv else words)])  # fmt: skip


def _assignments(variables: Mapping[str, str]) -> str:
    return shlex.join(f"{name}={value}" for name, value in variables.items())


def _code(text: object) -> str:
    """A code span, also within a table: nothing in it is markup."""
    return f"`{clean(text, 2000).replace('`', chr(39)).replace('|', '¦')}`"


def _block(lines: Sequence[str]) -> list[str]:
    fence = "`" * (max((line.count("`") for line in lines), default=0) + 3)
    return [fence, *lines, fence, ""] if lines else []
