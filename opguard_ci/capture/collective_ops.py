"""What the operators of torch.distributed do to their arguments, which their schemas do not say.

Sources: torch/csrc/distributed/c10d/Ops.cpp and Functional.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Effects:
    """``updated``: arguments read and written; ``filled``: only written; ``scratch``: without value."""

    updated: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    scratch: frozenset[str] = frozenset()


def _updates(*names: str) -> Effects:
    return Effects(updated=frozenset(names))


def _fills(*names: str) -> Effects:
    return Effects(filled=frozenset(names))


_C10D: Final[dict[str, Effects]] = {
    "allreduce_": _updates("tensors"),
    "allreduce_coalesced_": _updates("tensors"),
    "reduce_": _updates("tensors"),
    "broadcast_": _fills("tensors"),  # but read where they come from: see ``collectives``
    "allgather_": _fills("output_tensors"),
    "_allgather_base_": _fills("output_tensor"),
    "allgather_coalesced_": _fills("output_lists"),
    "allgather_into_tensor_coalesced_": _fills("outputs"),
    "reduce_scatter_": _fills("output_tensors"),
    "_reduce_scatter_base_": _fills("output_tensor"),
    "reduce_scatter_tensor_coalesced_": _fills("outputs"),
    "gather_": _fills("output_tensors"),
    "scatter_": _fills("output_tensors"),
    "alltoall_": _fills("output_tensors"),
    "alltoall_base_": _fills("output"),
    "recv_": _fills("tensors"),
    "recv_any_source_": _fills("tensors"),
    "send": Effects(),
    "barrier": Effects(scratch=frozenset(("tensor",))),
    "monitored_barrier_": Effects(scratch=frozenset(("tensor",))),
}
_FUNCTIONAL: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "isend", "wait_tensor")
"""Beginnings of names in ``_c10d_functional``; their schemas say what they write."""
_FUNCTIONAL_WRITES: Final[dict[str, Effects]] = {"irecv": _fills("tensor"), "batch_p2p_ops": _updates("tensors")}

WAIT: Final = "_c10d_functional.wait_tensor.default"


def effects_of(name: str) -> Effects | None:
    """The effects of an operator, ``namespace::name``, beside what its schema says; None if it is no collective."""
    namespace, _, base = name.partition("::")
    if namespace == "c10d":
        return _C10D.get(base)
    if namespace == "_c10d_functional":
        return _FUNCTIONAL_WRITES.get(base, Effects() if base.startswith(_FUNCTIONAL) else None)
    return Effects() if namespace == "symm_mem" else None
