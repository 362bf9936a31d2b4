"""What is fixed about an operator, read once from its schema: kind, writes, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from ..trace.model import KINDS
from .text import default_text

_OP, _VIEW, _COPY, _ALLOC = (KINDS.index(kind) for kind in ("op", "view", "copy", "alloc"))

_ALLOCATIONS: Final = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "empty_permuted",
        "resize_",
        "resize_as_",
        "_resize_output_",
        "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized",
    ]
)
_VIEWS_WITHOUT_ALIAS: Final = frozenset(
    ["_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "set_", "detach_", "alias"]
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
    random: bool
    host: bool
    builtin: bool
    """From torch's own namespaces; other operators may do anything to generators and arguments."""
    skipped: bool


def describe(func: Any) -> OpInfo:
    """The facts about an OpOverload or a higher-order operator."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return OpInfo(str(func), _OP, (), (), {}, frozenset(), frozenset(), False, False, False, False)
    namespace, _, base = schema.name.partition("::")
    written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    out = frozenset(a.name for a in schema.arguments if a.is_out)
    first = schema.arguments[0].name if schema.arguments else ""
    overwrites = (written & {first} if base in _OVERWRITES else frozenset()) | (written & out)
    defaults = {a.name: default_text(a.default_value) for a in schema.arguments if a.has_default_value()}
    return OpInfo(
        name=str(func),
        kind=_kind(base, schema, bool(written)),
        order=tuple(a.name for a in schema.arguments),
        positional=tuple(a.name for a in schema.arguments if not a.kwarg_only),
        defaults=defaults,
        written=written,
        overwrites=overwrites,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        host=base in _HOST,
        builtin=namespace in ("aten", "prims", "prim", "profiler", "_c10d_functional", "c10d"),
        skipped=namespace == "profiler",
    )


def _kind(base: str, schema: Any, writes: bool) -> int:
    if base in _ALLOCATIONS:
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
