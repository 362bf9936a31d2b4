"""CI and regression tests for the determinism of PyTorch training.

``recipe`` and ``mark_step`` cost nothing to import. ``capture`` and ``compare`` are packages that can be called,
so that ``opguard_ci.capture("trace")`` works without importing torch before it is needed.
"""

from typing import TYPE_CHECKING

from .recipe import mark_step, recipe
from .tolerance import atol, rtol, ulp

if TYPE_CHECKING:
    from .api import capture, compare
else:
    from . import capture, compare

__all__ = ["atol", "capture", "compare", "mark_step", "recipe", "rtol", "ulp"]
__version__ = "0.1.0"
