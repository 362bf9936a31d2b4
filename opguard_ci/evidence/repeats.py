"""Runs a target again and again, as it is or with something pinned: what ``replay`` and its diagnosis do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from opguard_ci.worker import client
from opguard_ci.worker.request import Profile, RunRequest, RunResult
from opguard_ci.worker.servers import IDLE, Server


@dataclass(frozen=True, slots=True)
class Variant:
    """What is pinned beyond what the target and its profile pin.

    ``variables``: set before the interpreter starts. ``switches``: set in the child before the target runs (see
    ``determinism.profile.switch_on``). ``hash_seed``: of all runs. ``profile``: instead of the target's.
    """

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    switches: tuple[str, ...] = ()
    hash_seed: int | None = None
    profile: str | None = None


AS_IT_IS = Variant("as it is")


def run_once(
    request: RunRequest, trace: Path, number: int, variant: Variant = AS_IT_IS, keep: Path | None = None
) -> RunResult:
    """Run number ``number`` of a series. The request's profile must be settled. What a variant prints is not shown.

    Runs take turns on two servers: two forks of one share hash seed and heap addresses, and so prove little.
    """
    profile = variant.profile or str(request.profile)
    asked = replace(
        request,
        output=str(trace.absolute()),
        profile=cast(Profile, profile),
        switches=variant.switches,
        keep=None if keep is None else str(keep),
    )
    unusual = bool(variant.variables) or variant.hash_seed is not None
    with _variables({**variant.variables, **({IDLE: "0"} if unusual else {})}):  # nobody will ask for that server again
        server = Server.connect(profile, instance=number % 2, hash_seed=variant.hash_seed)
        if variant is AS_IT_IS and keep is None:
            return client.run(asked, server=server)
        with Path(os.devnull).open("wb") as null:
            return client.run(asked, server=server, stdout=null.fileno(), stderr=null.fileno())


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    saved = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
