"""Packages that can be called: ``opguard_ci.capture(...)`` beside ``opguard_ci.capture.run``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that passes a call on to the function of the same name in ``opguard_ci.api``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that this package is named after."""
        from . import api

        return getattr(api, self.__name__.rpartition(".")[2])(*args, **kwargs)


def make_callable(name: str) -> None:
    """Let the loaded package ``name`` be called."""
    sys.modules[name].__class__ = CallablePackage
