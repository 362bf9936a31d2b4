"""How fingerprints call operators of their own, and what they raise."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes

_num_modes = torch._C._len_torch_dispatch_stack


class Unhashable(Exception):
    """A tensor whose content cannot be read; the message says why."""


class _NoModes:
    """As torch's ``_disable_current_modes``, at a tenth of its time while torch is not tracing."""

    __slots__ = ("_modes", "_torchs")

    def __enter__(self) -> None:
        self._torchs = _disable_current_modes() if _len_torch_dispatch_stack_pre_dispatch() else None
        if self._torchs is not None:
            self._torchs.__enter__()
            return
        self._modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(_num_modes())]

    def __exit__(self, *error: Any) -> None:
        if self._torchs is not None:
            self._torchs.__exit__(*error)
            return
        for mode in reversed(self._modes):
            torch._C._push_on_torch_dispatch_stack(mode)


class Quiet:
    """Call operators of our own so that nothing of the user's hears of them."""

    __slots__ = ("_guards",)

    def __enter__(self) -> None:
        self._guards = (
            torch._C.DisableTorchFunction(),
            torch._C._DisableFuncTorch(),
            _NoModes(),
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._DisableAutocast(),
        )
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *error: Any) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(*error)


quiet = Quiet
