"""What is asked of a run and what comes back, as plain data that crosses a socket. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast

Profile = Literal["strict", "portable", "observe"]
Level = Literal["auto", "contract", "op", "full"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run of a target under capture.

    ``profile`` None means: the recipe's own, else by the kind of target. ``timeout`` is in seconds. ``root`` is the top
    of the tree that the target belongs to. ``breadcrumb`` is a file of 256 bytes in which the recorder keeps the name
    of the operator it saw last, padded with NUL, so that a crash can be placed; the client of a fork server supplies
    one. ``commit`` (``<sha>`` or ``<sha>+dirty``) and ``tree`` say what is run, for the manifest, and so does
    ``edits`` (see ``worker.edits``). ``plan``: a file with
    the import plan of the commit whose code must run (see ``worker.plan``). ``expected``: a file with another run's
    contract digests, a JSON object from step to digest; the run ends after the first step that differs from them.
    ``keep``: a file that names the events whose tensors to keep, and where (see ``capture.keep``); the run ends after
    the last of them. ``switches``: what to switch on before the target runs (``determinism.profile.switch_on``).
    ``from_step`` and ``to_step``: the steps in which operators are recorded; of others, the contract alone.
    ``check_finite``: name contract values that are NaN or infinite in the manifest (``nonfinite``).
    ``ranks``: in how many processes torch's launcher runs the target; ``rank``: which of them this one is, set by the
    launcher.
    """

    target: str
    cwd: str
    output: str
    argv: tuple[str, ...] = ()
    level: Level = "auto"
    profile: Profile | None = None
    steps: int | None = None
    allow_unseen: bool = False
    timeout: float = 600
    root: str | None = None
    breadcrumb: str | None = None
    commit: str | None = None
    tree: str | None = None
    plan: str | None = None
    expected: str | None = None
    check_finite: bool = False
    keep: str | None = None
    switches: tuple[str, ...] = ()
    from_step: int | None = None
    to_step: int | None = None
    ranks: int = 1
    rank: int | None = None
    edits: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that ``from_json`` turns back into an equal request."""
        return {**asdict(self), "argv": list(self.argv), "switches": list(self.switches)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunRequest:
        """The request that ``to_json`` wrote."""
        return cls(**{**data, **{name: tuple(data.get(name, ())) for name in ("argv", "switches")}})


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to.

    ``outcome`` is what the entry returned, or the client's account of a crash. ``server`` tells one fork server from
    another (process id and start time; empty for a run in process), so that two results can prove that they do not
    share a hash seed, a heap layout or preloaded state. ``hash_seed`` is the value of PYTHONHASHSEED that was in force,
    or ``random``. ``left_behind`` names the processes that were still alive after the run and had to be ended.
    """

    status: Literal["ok", "untestable"]
    outcome: dict[str, Any]
    trace: str
    seconds: float
    server: str = ""
    hash_seed: str = "random"
    left_behind: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """A JSON object that ``from_json`` turns back into an equal result."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**plain, "left_behind": list(self.left_behind)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunResult:
        """The result that ``to_json`` wrote."""
        return cls(**cast("dict[str, Any]", {**data, "left_behind": tuple(data.get("left_behind", ()))}))
