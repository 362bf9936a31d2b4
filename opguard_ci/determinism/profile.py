"""The switches of each profile: variables for before the start, settings for the child, values read back."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from opguard_ci.errors import UsageError

PROFILES: Final = ("strict", "portable", "observe")

_STRICT: Final = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUBLASLT_WORKSPACE_SIZE": "32768",  # KiB, as much as :4096:8 gives cuBLAS
    "NVIDIA_TF32_OVERRIDE": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MIN_NCHANNELS": "1",
    "NCCL_MAX_NCHANNELS": "1",
    "TORCH_LINALG_PREFER_CUSOLVER": "1",  # the setter prints a warning in every run
    "TORCHINDUCTOR_DETERMINISTIC": "1",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "0",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}

_CPU_PINS: Final = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
}

_READ_AT_START: Final = {"PYTHONHASHSEED", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_DETERMINISTIC", *_CPU_PINS}
"""Read once by the interpreter or by a library as it loads. The other variables are read at the first use of their
library, and of these the thread counts have a setter as well."""


def environment_variables(profile: str) -> dict[str, str]:
    """The variables that must be set before the interpreter and torch start; none under ``observe``."""
    if profile not in PROFILES:
        raise UsageError("unknown-profile", f"There is no profile {profile!r}; choose one of {', '.join(PROFILES)}.")
    if profile == "observe":
        return {}
    return {**_STRICT, **_CPU_PINS} if profile == "portable" else dict(_STRICT)


def overridden(profile: str, environment: Mapping[str, str]) -> list[str]:
    """One sentence for each variable of the caller that the profile replaces by another value."""
    return [
        f"{name}={environment[name]} of the environment is {value} under the profile {profile}"
        for name, value in environment_variables(profile).items()
        if name in environment and environment[name] != value
    ]


def seed_everything(seed: int) -> None:
    """Seeds random, numpy's global generator and torch on every device, without initialising CUDA.

    DataLoader workers draw their seeds from torch's CPU generator and so follow.
    """
    import torch

    random.seed(seed)
    try:
        import numpy as np
    except ImportError:
        pass  # nothing to seed; torch works without it
    else:
        np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # CUDA generators too, at their initialisation


def apply(profile: str, seed: int = 0, *, compiles: bool = True) -> list[str]:
    """Sets what can be set in a running process; one sentence for each switch that could not be set any more.

    Under ``observe`` nothing is touched. CUDA is never initialised. A process that never ``compiles`` can do without
    torch's compiler, which is told as well and takes seconds to import.
    """
    wanted = environment_variables(profile)
    if not wanted:
        return []
    import torch

    problems = []
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
            if name in _READ_AT_START:
                problems.append(f"{name}={value} could not be set: it is read when the process starts")
    if sys.flags.hash_randomization and "PYTHONHASHSEED" not in " ".join(problems):
        problems.append("PYTHONHASHSEED=0 is not in force: this interpreter started with another hash seed")

    for setting, act in _settings(compiles):
        try:
            act()
        except (RuntimeError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            problems.append(f"{setting} could not be set: {reason}")
    if profile == "portable":
        from opguard_ci.determinism import portable

        portable.install_sqrt()
        capability = torch.backends.cpu.get_cpu_capability()
        if capability != "AVX2":
            problems.append(f"ATEN_CPU_CAPABILITY=avx2 is not in force: torch uses {capability} on this CPU")
    seed_everything(seed)
    return problems


def switch_on(name: str) -> None:
    """Set one thing in a running process: ``deterministic`` (torch's algorithms) or ``seeds`` (of all generators)."""
    import torch

    if name == "seeds":
        seed_everything(0)
        return
    assert name == "deterministic", name
    torch.use_deterministic_algorithms(True)
    torch._C._set_deterministic_fill_uninitialized_memory(False)  # or programs that read it would change


def _settings(compiles: bool) -> list[tuple[str, Callable[[], Any]]]:
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def assign(owner: object, name: str, value: object) -> Callable[[], None]:
        return lambda: setattr(owner, name, value)

    def one_interop_thread() -> None:
        if torch.get_num_interop_threads() != 1:  # a second call raises, even with the same number
            torch.set_num_interop_threads(1)

    def deterministic() -> None:
        if compiles:
            torch.use_deterministic_algorithms(True)
        else:
            torch._C._set_deterministic_algorithms(True)

    settings: list[tuple[str, Callable[[], Any]]] = [
        ("1 intra-op thread", lambda: torch.set_num_threads(1)),
        ("1 inter-op thread", one_interop_thread),
        ("deterministic algorithms", deterministic),
        # On by default with the above: it would write NaN into every torch.empty and change programs that read it.
        ("fill_uninitialized_memory", lambda: torch._C._set_deterministic_fill_uninitialized_memory(False)),
        ("cudnn.deterministic", assign(cudnn, "deterministic", True)),
        ("cudnn.benchmark", assign(cudnn, "benchmark", False)),
        ("cudnn.allow_tf32", assign(cudnn, "allow_tf32", False)),
        ("matmul.allow_tf32", assign(matmul, "allow_tf32", False)),
        ("float32_matmul_precision", lambda: torch.set_float32_matmul_precision("highest")),
        ("fp16 reduced precision off", assign(matmul, "allow_fp16_reduced_precision_reduction", False)),
        ("bf16 reduced precision off", assign(matmul, "allow_bf16_reduced_precision_reduction", False)),
        ("mkldnn.deterministic", assign(torch.backends.mkldnn, "deterministic", True)),
    ]
    if torch.version.cuda is not None:
        settings.append(("preferred BLAS library", lambda: torch.backends.cuda.preferred_blas_library("cublas")))
    return settings


def effective() -> dict[str, str]:
    """The values in force, read back from torch, whatever was asked for. CUDA is not initialised."""
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    readers: dict[str, Callable[[], object]] = {
        "threads.intra_op": torch.get_num_threads,
        "threads.inter_op": torch.get_num_interop_threads,
        "cpu.capability": torch.backends.cpu.get_cpu_capability,
        "flag.deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "flag.deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "flag.fill_uninitialized_memory": torch._C._get_deterministic_fill_uninitialized_memory,
        "flag.cudnn.deterministic": lambda: cudnn.deterministic,
        "flag.cudnn.benchmark": lambda: cudnn.benchmark,
        "flag.cudnn.allow_tf32": lambda: cudnn.allow_tf32,
        "flag.matmul.allow_tf32": lambda: matmul.allow_tf32,
        "flag.matmul.fp16_reduced_precision": lambda: matmul.allow_fp16_reduced_precision_reduction,
        "flag.matmul.bf16_reduced_precision": lambda: matmul.allow_bf16_reduced_precision_reduction,
        "flag.float32_matmul_precision": torch.get_float32_matmul_precision,
        "flag.mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,
        "flag.mkldnn.deterministic": lambda: torch.backends.mkldnn.deterministic,
        "flag.blas": lambda: str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2],
        "flag.linalg": lambda: str(torch.backends.cuda.preferred_linalg_library()).rpartition(".")[2],
        "flag.portable_sqrt": _portable_sqrt,
    }
    values = {}
    for name, read in readers.items():
        try:
            values[name] = str(read())
        except RuntimeError as error:  # torch refuses some reads once the old and the new TF32 switches were mixed
            values[name] = f"unreadable: {str(error).splitlines()[0]}"
    seed = os.environ.get("PYTHONHASHSEED", "random")
    values["hash_seed"] = seed if seed.isdigit() else "random"
    return values


def _portable_sqrt() -> bool:
    module = sys.modules.get("opguard_ci.determinism.portable")
    return bool(module and module.installed())
