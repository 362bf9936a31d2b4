"""A folder that repeats one operator: its tensors as safetensors, and a script that needs torch alone (DESIGN 9)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from opguard_ci.errors import UsageError
from opguard_ci.evidence.kept import Kept
from opguard_ci.evidence.script import SCRIPT

MAX_BYTES: Final = 1 << 30
"""Larger reproducers are refused: nobody attaches them to a report."""
_OF_TORCH: Final = ("aten.", "prims.")
_SETTINGS: Final = ("threads", "deterministic")


class NoReproducerError(UsageError):
    """The divergence has no operator that a script of torch alone could repeat; the message says why."""

    def __init__(self, why: str) -> None:
        super().__init__("no-reproducer", f"No reproducer: {why}.")


def write_reproducer(folder: Path, calls: Mapping[str, Kept], document: Mapping[str, Any]) -> None:
    """Write ``repro.py`` and the tensors of a divergence's calls to a new folder.

    Args:
        folder: made if it is not there.
        calls: by side, what was kept of its call.
        document: the ``compare`` object that the calls belong to.

    Raises:
        NoReproducerError: There is no call, or something of it cannot be saved.

    """
    if not calls:
        raise NoReproducerError("there is no operator behind this divergence whose tensors were kept")
    for side, kept in calls.items():
        _check(side, kept)
    size = sum(kept.nbytes() for kept in calls.values())
    if size > MAX_BYTES:
        raise NoReproducerError(f"its tensors have {size:,} bytes, more than {MAX_BYTES:,}")
    text = _script(calls, document)
    folder.mkdir(parents=True, exist_ok=True)
    for side, kept in calls.items():
        for name in kept.files():
            shutil.copyfile(kept.folder / name, folder / f"{side}-{name.partition('-')[2]}")
    (folder / "repro.py").write_text(text, encoding="utf-8")


def _check(side: str, kept: Kept) -> None:
    entry = kept.entry
    op = entry["op"]
    if not op.startswith(_OF_TORCH):
        raise NoReproducerError(f"{op} is no operator of torch itself")
    for name, why in entry["problems"].items():
        raise NoReproducerError(f"{name} of the {side}'s {op} cannot be saved: {why}")
    for name, about in entry["tensors"].items():
        if name.startswith("input") and _overlaps(about["shape"], about["stride"]):
            raise NoReproducerError(f"elements of {name} of the {side}'s {op} overlap in memory")
    if found := _object(entry["args"]) or _object(list(entry["kwargs"].values())):
        raise NoReproducerError(f"{op} was given a {found}, which is no tensor and no plain value")


def _overlaps(shape: list[int], stride: list[int]) -> bool:
    """Whether two elements share memory, other than along expanded axes."""
    span = 1
    for step, length in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1 and s != 0):
        if step < span:
            return True
        span = step * (length - 1) + span
    return False


def _object(value: Any) -> str | None:
    """The type of an argument that cannot be written down."""
    if isinstance(value, list):
        return next((found for item in value if (found := _object(item))), None)
    return value.get("object") if isinstance(value, dict) else None


def _script(calls: Mapping[str, Kept], document: Mapping[str, Any]) -> str:
    first = document["first_divergence"]
    lines = [f"{side}: commit {(document.get(side) or {}).get('commit') or 'unknown'}" for side in calls]
    where = ", ".join(str(part) for part in (f"step {first['step']}", first["phase"], first.get("module")) if part)
    about = [f"{first['cause']}: {first['detail']}", where, *lines]
    operators = " and ".join(dict.fromkeys(kept.entry["op"] for kept in calls.values()))
    bodies = [
        f"    {side!r}: lambda t, generator: torch.ops.{kept.entry['op']}({_arguments(kept.entry)}),"
        for side, kept in calls.items()
    ]
    tensors = {side: _geometry(kept.entry) for side, kept in calls.items()}
    return SCRIPT.format(
        title=_quoted(f"{operators}, on the tensors of recorded runs that part there."),
        about="\n".join(_quoted(line) for line in about),
        settings=_settings(calls),
        tensors=_laid_out(tensors),
        calls="\n".join(["CALLS = {", *bodies, "}", ""]),
    )


def _quoted(text: str) -> str:
    """Text that may stand in a docstring of the script, whatever the run put into it."""
    return text.encode("unicode_escape").decode("ascii").replace('"', "'")


def _settings(calls: Mapping[str, Kept]) -> str:
    """What each side's call was made under, as Python."""
    sides = {side: {name: kept.entry["settings"][name] for name in _SETTINGS} for side, kept in calls.items()}
    lines = ["SETTINGS = {", *(f"    {side!r}: {settings!r}," for side, settings in sides.items()), "}"]
    return "\n".join(lines)


def _geometry(entry: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("dtype", "shape", "stride", "align", "device")
    found = {name: {key: about[key] for key in keys} for name, about in entry["tensors"].items()}
    if "generator" in found:
        found["generator"]["for"] = entry["generator"]
    return found


def _laid_out(tensors: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with a line per tensor."""
    sides = []
    for side, about in tensors.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in about.items())
        sides.append(f" {json.dumps(side)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(sides) + "\n}"


def _arguments(entry: Mapping[str, Any]) -> str:
    words = [_source(value) for value in entry["args"]]
    words += [f"**{{{name!r}: {_source(value)}}}" for name, value in entry["kwargs"].items()]
    return ", ".join(words)


def _source(value: Any) -> str:
    """An argument as ``capture.keep.encode`` wrote it, as Python."""
    if isinstance(value, list):
        return f"[{', '.join(_source(item) for item in value)}]"
    if not isinstance(value, dict):
        return repr(value)
    ((kind, held),) = value.items()
    if kind == "tensor":
        return f't["input {held}"]'
    if kind in ("float", "complex"):
        return f"{kind}({held!r})"
    if kind == "torch":
        return str(held)
    if kind == "device":
        return repr(held)
    assert kind == "generator", kind
    return "generator"
