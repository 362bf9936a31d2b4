"""What is fixed about an operator, read once from its schema: kind, writes, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ..trace.model import HOST, KINDS, RANDOM
from .collective_ops import effects_of
from .text import Template, default_text

_OP, _VIEW, _COPY, _ALLOC, _COLLECTIVE = (KINDS.index(kind) for kind in ("op", "view", "copy", "alloc", "collective"))

BREADCRUMB_BYTES: Final = 256

_ALLOCATIONS: Final = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "empty_permuted",
        "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized",
    ]
)
_RESIZES: Final = frozenset(("resize_", "resize_as_", "_resize_output_"))
"""Keep the bytes that there are, and may add some that nobody has written."""
_VIEWS_WITHOUT_ALIAS: Final = frozenset(
    ["_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "set_", "detach_", "alias", "_wrap_tensor_autograd"]
)
_COPIES: Final = frozenset(
    ["clone", "copy_", "contiguous", "_to_copy", "lift_fresh_copy", "_foreach_copy_", "resolve_conj", "resolve_neg"]
)
_OVERWRITES: Final = frozenset(
    [
        "fill_",
        "zero_",
        "copy_",
        "uniform_",
        "normal_",
        "random_",
        "bernoulli_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "cauchy_",
        "_foreach_zero_",
        "_foreach_copy_",
        "set_",
    ]
)
_UNDECLARED: Final = frozenset(
    (
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "_native_batch_norm_legit",
        "_fused_moving_avg_obs_fq_helper",
        "_thnn_fused_lstm_cell",
    )
)
"""Built-in operators known to write arguments that their schema calls read-only."""
_SCRATCH: Final[dict[str, tuple[frozenset[str], frozenset[int]]]] = {
    "mkldnn_rnn_layer": (frozenset(), frozenset((3,))),
    "mkldnn_rnn_layer_backward": (frozenset(("workspace",)), frozenset()),
    "all_gather_copy_in": (frozenset(("all_gather_output",)), frozenset((1,))),  # filled for this rank only
    "_cudnn_init_dropout_state": (frozenset(), frozenset((0,))),
    "_cudnn_rnn": (frozenset(("dropout_state",)), frozenset((3,))),
    "_cudnn_rnn_backward": (frozenset(("dropout_state", "reserve")), frozenset()),
    "_ctc_loss": (frozenset(), frozenset((1,))),  # behind the end of the shorter targets
    "_ctc_loss_backward": (frozenset(("log_alpha",)), frozenset()),
}
"""Arguments and outputs that are a library's own memory, in part never written: no value."""
_DRAWN: Final = frozenset(("philox_seed", "philox_offset", "rng_state", "unused"))
"""What fused attention hands to its backward to draw the same again, and never writes where nothing is dropped. What is
drawn is told by the generator's state and by the result."""
_HOST: Final = frozenset(("_local_scalar_dense", "equal", "is_nonzero", "allclose"))


@dataclass(frozen=True, slots=True)
class OpInfo:
    """The fixed facts about one overload."""

    name: str
    kind: int
    order: tuple[str, ...]
    """All arguments, in schema order."""
    positional: tuple[str, ...]
    defaults: Mapping[str, str]
    """Text of the default of each argument that has one, in schema order."""
    written: frozenset[str]
    """Names of the arguments that the schema says are written."""
    overwrites: frozenset[str]
    """Those of ``written`` whose old content does not matter."""
    scratch: frozenset[str]
    """Names of the arguments without value."""
    scratch_outputs: frozenset[int]
    """Numbers of the returns without value."""
    generators: frozenset[str]
    """Names of the arguments that are random generators."""
    random: bool
    host: bool
    flags: int
    """Of its events."""
    builtin: bool
    """From torch's own namespaces; other operators may do anything to generators and arguments."""
    trusted: bool
    """Built in, and not known to write what its schema calls read-only."""
    resizes: bool
    skipped: bool
    collective: bool
    """Of torch.distributed: its results are there when somebody has waited for them."""
    crumb: bytes
    """The name as it is left for crash reports."""
    templates: dict[Any, Template] = field(default_factory=dict, compare=False)
    """Texts of its calls, by which arguments are passed."""


def describe(func: Any) -> OpInfo:
    """The facts about an OpOverload or a higher-order operator."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return opaque(str(func), _OP)
    namespace, _, base = schema.name.partition("::")
    written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    out = frozenset(a.name for a in schema.arguments if a.is_out)
    first = schema.arguments[0].name if schema.arguments else ""
    effects = effects_of(schema.name)
    if effects is not None:
        written |= effects.updated | effects.filled
    overwrites = (written & {first} if base in _OVERWRITES else frozenset()) | (written & out)
    if effects is not None:
        overwrites |= effects.filled
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    scratch, scratch_outputs = _scratch(base, schema)
    builtin = namespace in ("aten", "prims", "prim", "profiler", "_c10d_functional", "c10d")
    return OpInfo(
        name=str(func),
        kind=_kind(base, schema, bool(written)) if effects is None else _COLLECTIVE,
        order=tuple(a.name for a in schema.arguments),
        positional=tuple(a.name for a in schema.arguments if not a.kwarg_only),
        defaults={a.name: default_text(a.default_value) for a in schema.arguments if a.has_default_value()},
        written=written,
        overwrites=overwrites,
        scratch=scratch if effects is None else effects.scratch,
        scratch_outputs=scratch_outputs,
        generators=frozenset(a.name for a in schema.arguments if "Generator" in str(a.type)),
        random=is_random,
        host=base in _HOST,
        flags=(RANDOM if is_random else 0) | (HOST if base in _HOST else 0),
        builtin=builtin,
        trusted=builtin and base not in _UNDECLARED,
        resizes=base in _RESIZES,
        skipped=namespace == "profiler",
        collective=effects is not None,
        crumb=_crumb(str(func)),
    )


def _scratch(base: str, schema: Any) -> tuple[frozenset[str], frozenset[int]]:
    if "attention" in base:
        return (
            frozenset(a.name for a in schema.arguments if a.name in _DRAWN),
            frozenset(number for number, one in enumerate(schema.returns) if one.name in _DRAWN),
        )
    return _SCRATCH.get(base, (frozenset(), frozenset()))


def opaque(name: str, kind: int, written: tuple[str, ...] = ()) -> OpInfo:
    """The facts about something without a schema: it may do anything."""
    return OpInfo(
        name=name,
        kind=kind,
        order=(),
        positional=(),
        defaults={},
        written=frozenset(written),
        overwrites=frozenset(),
        scratch=frozenset(),
        scratch_outputs=frozenset(),
        generators=frozenset(),
        random=False,
        host=False,
        flags=0,
        builtin=False,
        trusted=False,
        resizes=False,
        skipped=False,
        collective=False,
        crumb=_crumb(name),
    )


def _crumb(name: str) -> bytes:
    return name.encode("utf-8", "replace")[: BREADCRUMB_BYTES - 1] + b"\0"


def _kind(base: str, schema: Any, writes: bool) -> int:
    if base in _ALLOCATIONS or base in _RESIZES:
        return _ALLOC
    if base in _COPIES:
        return _COPY
    if base in _VIEWS_WITHOUT_ALIAS:
        return _VIEW
    aliases = [r for r in schema.returns if r.alias_info is not None]
    if aliases and not writes and len(aliases) == len(schema.returns):
        return _VIEW
    in_place_view = (
        writes
        and base.endswith("_")
        and base.rstrip("_") in ("t", "transpose", "squeeze", "unsqueeze", "swapaxes", "as_strided")
    )
    return _VIEW if in_place_view else _OP
