"""Operators of our own, of which nothing of the user's hears."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from opguard_ci.capture.fingerprint.quiet import quiet


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("around", [nullcontext, FakeTensorMode])
@pytest.mark.parametrize("error", [False, True])
def test_modes_hear_nothing_and_stand_as_before(around: Any, error: bool):
    """The user's and torch's own, after an error too."""
    with around(), Watching() as outer, Watching() as inner:
        before = _get_current_dispatch_mode_stack()
        with pytest.raises(KeyError) if error else nullcontext(), quiet():
            assert _get_current_dispatch_mode_stack() == []
            assert type(torch.ones(2) + 1) is torch.Tensor
            if error:
                raise KeyError
        assert _get_current_dispatch_mode_stack() == before
        torch.ones(2)
    assert outer.seen == inner.seen == ["aten.ones.default"]


def test_a_tracer_hears_nothing():
    """What is quiet is not in the graph, before autograd either."""

    def function(x: torch.Tensor) -> torch.Tensor:
        with quiet():
            torch.ones(2).sin()
        return x.cos()

    for pre_dispatch in (False, True):
        code = make_fx(function, pre_dispatch=pre_dispatch)(torch.ones(2)).code
        assert "cos" in code
        assert "sin" not in code
