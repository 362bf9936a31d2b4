"""What differs under pytest-xdist: who writes, and which GPU a worker may use."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest


def worker_number(config: pytest.Config) -> int | None:
    """The number of this xdist worker; None in a session that distributes nothing, and in the controller."""
    given = getattr(config, "workerinput", None)
    if given is None:
        return None
    digits = re.search(r"\d+$", str(given.get("workerid", "")))
    return int(digits.group()) if digits else 0


def is_controller(config: pytest.Config) -> bool:
    """Whether this process reports: there is one per session, and it alone writes files."""
    return not hasattr(config, "workerinput")


def claim_gpu(worker: int) -> None:
    """Let this worker, and all it starts, see one of the machine's GPUs, in turn. Without GPUs nothing is set."""
    devices = listed_gpus()
    if len(devices) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[worker % len(devices)]


def listed_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """The GPUs this process may use, by ``CUDA_VISIBLE_DEVICES``, else as the driver lists them. Asks no CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    try:
        return [str(number) for number, _ in enumerate(driver.iterdir())]
    except OSError:
        return []
