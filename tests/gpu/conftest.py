"""Everything here needs a CUDA device; elsewhere it is collected and skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if _HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
