"""How fingerprints call operators of their own, and what they raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


class Unhashable(Exception):
    """A tensor whose content cannot be read; the message says why."""


@contextmanager
def quiet() -> Iterator[None]:
    """Call operators of our own so that nothing of the user's hears of them."""
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch._C._DisableFuncTorch())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(torch._C._DisableAutocast())
        yield
