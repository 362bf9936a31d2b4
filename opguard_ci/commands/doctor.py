"""``opguard doctor``: what this machine is and what each profile can pin on it; or how two environments differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from opguard_ci.commands import Result
from opguard_ci.determinism.profile import PROFILES
from opguard_ci.errors import OpguardError, UsageError
from opguard_ci.report.clean import clean
from opguard_ci.report.layout import Line, count, field, items, paragraph, title

NAME: Final = "doctor"
HELP: Final = "describe environment, pins, git state and GPU; or explain how two environments differ"

_MAX_DOCUMENT: Final = 1 << 26


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options."""
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="explain how the environments of two traces, manifests or doctor --json objects differ",
    )


def run(args: argparse.Namespace) -> Result:
    """Describe this machine, or compare two environments."""
    if args.diff:
        return _difference(*args.diff)
    from opguard_ci.commands.pinned import ask

    answers = ask(PROFILES)
    document = {
        "schema": 1,
        "verdict": "ok",
        "environment": {"key": answers["observe"]["key"], "document": answers["observe"]["document"]},
        "profiles": answers,
        "recorder": _recorder(answers["observe"]["not_compiled"]),
        "git": _git(),
        "gpu": [text for name, text in answers["observe"]["document"].items() if name.startswith("gpu.")],
        "servers": _servers(),
    }
    return Result(document, tuple(_describe(document)), 0)


def _difference(a: str, b: str) -> Result:
    from opguard_ci.determinism.environment import diff

    before, after = _environment(a), _environment(b)
    lines = diff(before["document"], after["document"])
    keys = [before.get("key"), after.get("key")]
    document = {"schema": 1, "verdict": "ok", "keys": keys, "same": keys[0] == keys[1], "diff": lines}
    head = "the environments have the same key" if document["same"] else "the environments have different keys"
    text = [*paragraph(f"{head}: {clean(keys[0])}, {clean(keys[1])}", indent=""), Line("")]
    text += items(clean(line) for line in lines) or paragraph("nothing differs")
    return Result(document, tuple(text), 0)


def _environment(path: str) -> dict[str, Any]:
    """The environment (key and document) that a trace, a manifest or a file of JSON holds."""
    found = _saved_object(Path(path))
    if found is None:
        from opguard_ci.trace.reader import read_trace

        found = read_trace(path).manifest["environment"]
    document = found.get("document") if isinstance(found, dict) else None
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise UsageError(
            "not-an-environment", f"{path} holds no environment; name a trace, or what doctor --json printed"
        )
    return {"key": found.get("key"), "document": document}


def _saved_object(file: Path) -> Any:
    """What a file of JSON holds that is no manifest; None for a trace, a manifest, or nothing at all."""
    if not file.is_file() or file.stat().st_size > _MAX_DOCUMENT:
        return None
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise UsageError(
            "not-an-environment", f"{file} is not JSON; name a trace, or what doctor --json printed"
        ) from None
    if not isinstance(found, dict) or "scheme" in found:
        return None
    return found.get("environment", found)


def _git() -> dict[str, Any]:
    from opguard_ci.worker.git import Repository

    try:
        with Repository(Path.cwd()) as repository:
            return {
                "root": str(repository.root),
                "head": repository.head(),
                "branch": repository.branch(),
                "changed": len(repository.dirty()),
                "shallow": repository.is_shallow,
                "partial": repository.promisor,
            }
    except OpguardError as error:
        return {"slug": error.slug, "message": error.message}


def _recorder(not_compiled: str) -> dict[str, str]:
    if not not_compiled:
        return {"kind": "compiled"}
    return {"kind": "python", "reason": not_compiled, "build": f"{sys.executable} -m opguard_ci.capture.native"}


def _servers() -> list[dict[str, Any]]:
    from opguard_ci.worker.servers import list_servers

    return list_servers()


def _describe(document: Mapping[str, Any]) -> list[Line]:
    values = document["environment"]["document"]
    lines = [Line("environment", "title")]
    for label, names in (
        ("system", ("system", "distribution", "libc")),
        ("cpu", ("cpu.model", "cpu.cores", "cpu.capability")),
        ("python", ("python",)),
        ("torch", ("torch", "torch.mkl", "torch.onednn", "cuda", "cudnn", "nccl", "driver")),
    ):
        lines += field(label, ", ".join(_value(name, values[name]) for name in names if name in values))
    lines += field("gpu", "; ".join(clean(gpu) for gpu in document["gpu"]) or "none")
    recorder = document["recorder"]
    text = recorder["kind"]
    if "reason" in recorder:
        text += f", which is slower: {recorder['reason']}; {recorder['build']} builds the compiled one"
    lines += field("recorder", clean(text, 2000))
    lines += _profiles(document["profiles"])
    lines += title("git")
    git = document["git"]
    lines += paragraph(clean(git["message"], 2000)) if "message" in git else _repository(git)
    lines += title("servers")
    servers = [_server(server) for server in document["servers"]]
    return lines + (items(servers) if servers else paragraph("none is running"))


def _server(server: Mapping[str, Any]) -> str:
    runs = count(server["runs"], "run") + " now" if server["runs"] else f"unused for {server['unused_for']:.0f} s"
    return (
        f"process {server['pid']}, profile {clean(server['profile'])}, hash seed {clean(server['hash_seed'])}, {runs}, "
        f"ends after {server['idle']:.0f} s without a run"
    )


def _value(name: str, value: str) -> str:
    noun = {"cpu.cores": "cores", "torch.mkl": "MKL", "torch.onednn": "oneDNN"}.get(name)
    if name == "cpu.cores":
        return f"{clean(value)} {noun}"
    return f"{noun or name} {clean(value)}" if noun or name in ("cuda", "cudnn", "nccl", "driver") else clean(value)


def _profiles(profiles: Mapping[str, Any]) -> list[Line]:
    lines: list[Line] = []
    for name, answer in profiles.items():
        lines += title(f"profile {name}")
        lines += field("key", clean(answer["key"]))
        pinned = "nothing is touched" if name == "observe" else "everything could be pinned"
        unmet = [*answer["problems"], *answer["overridden"]]
        lines += field(
            "pins", count(len(answer["problems"]), "pin") + " could not be set" if answer["problems"] else pinned
        )
        lines += items(clean(sentence) for sentence in unmet)
    return lines


def _repository(git: Mapping[str, Any]) -> list[Line]:
    branch = clean(git["branch"]) if git["branch"] else "no branch"
    changed = count(git["changed"], "changed file") if git["changed"] else "clean"
    more = [word for word, holds in (("shallow clone", git["shallow"]), ("partial clone", git["partial"])) if holds]
    return [*field("root", clean(git["root"])), *field("head", ", ".join([git["head"], branch, changed, *more]))]
