"""The memory that the compiled recorder follows, for the Python one."""

from __future__ import annotations

from typing import Any

import torch

from ..links import Memory


class CompiledMemory(Memory):
    """All storages that the run has touched; both recorders share them. See ``links``."""

    def __init__(self, module: Any) -> None:
        self.known: Any = module.Memory()

    def adopt(self, tensor: torch.Tensor, storage: torch.UntypedStorage, made: bool) -> Any:
        """See ``Memory``."""
        return self.known.adopt(tensor, storage, made)

    def resized(self, tensor: torch.Tensor) -> None:
        """See ``Memory``."""
        self.known.resized(tensor)

    def sweep(self) -> None:
        """See ``Memory``."""
        self.known.sweep()

    def close(self) -> None:
        """See ``Memory``."""
        self.known.close()
