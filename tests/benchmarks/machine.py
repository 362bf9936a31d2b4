"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch


def machine() -> dict[str, object]:
    """Commit, torch, Python, processors and card. The commit may be handed in where there is no repository."""
    command = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": os.environ.get("OPGUARD_BENCHMARK_COMMIT") or found or None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "card": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
    }
