"""The environment key: what can change a run's bits on another machine, digested, documented and explained."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from typing import Final

RECORDED_ONLY: Final = frozenset({"cpu.model", "hash_seed", "locale", "time_zone"})
"""Fields that are written down for a person and leave the key alone: they seldom change bits, and the CPU's family, its
capability and the C library stand for them. The hash seed is a property of a run that ``replay`` varies on purpose: a
target whose numbers follow it is unstable, not in another environment."""

PINNED_AWAY: Final = frozenset({"cpu.family", "cpu.cores", "distribution", "libc", "driver", "env.GOMP_CPU_AFFINITY"})
"""What the pins of ``portable`` make irrelevant on one architecture."""

_WORDS: Final = {
    "system": "operating system",
    "distribution": "distribution",
    "libc": "C library",
    "cpu.model": "CPU model",
    "cpu.family": "CPU family",
    "cpu.cores": "usable CPU cores",
    "cpu.capability": "CPU instructions that torch uses",
    "threads.intra_op": "intra-op threads",
    "threads.inter_op": "inter-op threads",
    "python": "Python",
    "torch": "torch",
    "torch.git": "torch build",
    "torch.mkl": "MKL in torch",
    "torch.onednn": "oneDNN in torch",
    "torch.parallel": "torch's parallel backend",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "driver": "GPU driver",
    "hash_seed": "hash seed",
    "locale": "locale",
    "time_zone": "time zone",
}


def environment_document(own: Collection[str] = ()) -> dict[str, str]:
    """What can change bits here and now, in readable text, without the project's ``own`` packages.

    Take it before the target runs: what the target changes itself is not the environment.
    """
    from opguard_ci.determinism import machine, profile

    document = {**machine.system(), **machine.torch_build(), **profile.effective()}
    if version := machine.driver():
        document["driver"] = version
    document.update({f"gpu.{number}": text for number, text in enumerate(machine.gpus())})
    document.update({f"env.{name}": os.environ[name] for name in machine.BIT_VARIABLES if name in os.environ})
    document.update({f"package.{name}": version for name, version in machine.packages(own).items()})
    return dict(sorted(document.items()))


def keyed_fields(document: Mapping[str, str], profile: str) -> dict[str, str]:
    """The part of a document that its key is made of."""
    left_out = RECORDED_ONLY | PINNED_AWAY if profile == "portable" else RECORDED_ONLY
    return {name: value for name, value in sorted(document.items()) if name not in left_out}


def environment_key(document: Mapping[str, str], profile: str) -> str:
    """16 hex digits that differ when something differs that can change bits.

    Under ``portable`` the CPU's family, core count, distribution, C library and driver are left out.
    """
    text = json.dumps(keyed_fields(document, profile))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def diff(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """What differs from document ``a`` to document ``b``, one line each; first what is part of the key."""
    lines: list[str] = []
    remarks: list[str] = []
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) == b.get(name):
            continue
        line = f"{_in_words(name)}: {a.get(name, 'absent')} -> {b.get(name, 'absent')}"
        if name in RECORDED_ONLY:
            remarks.append(f"{line} (recorded only, not part of the key)")
        elif name in PINNED_AWAY:
            lines.append(f"{line} (not part of the key under portable)")
        else:
            lines.append(line)
    return lines + remarks


def _in_words(name: str) -> str:
    if name in _WORDS:
        return _WORDS[name]
    kind, _, rest = name.partition(".")
    noun = {"flag": "setting", "env": "variable", "package": "package", "gpu": "GPU"}.get(kind)
    return f"{noun} {rest}" if noun and rest else name
