"""Reads what this machine and this process are, without initialising CUDA and without importing packages."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

NUMERIC_PACKAGES: Final = (
    "accelerate", "albumentations", "apex", "bitsandbytes", "causal-conv1d", "datasets", "deepspeed", "diffusers",
    "einops", "flash-attn", "flash-linear-attention", "jax", "jaxlib", "liger-kernel", "lightning", "mamba-ssm",
    "megatron-core", "nccl4py", "numba", "numpy", "opencv-python", "opencv-python-headless", "pandas", "peft", "pillow",
    "pytorch-lightning", "safetensors", "scikit-learn", "scipy", "sentencepiece", "tensordict", "tiktoken", "timm",
    "tokenizers", "torch-geometric", "torchao", "torchaudio", "torchdata", "torchmetrics", "torchrec", "torchtext",
    "torchtitan", "torchtune", "torchvision", "transformer-engine", "transformers", "triton", "trl", "unsloth", "vllm",
    "xformers",
)  # fmt: skip
"""Packages that compute numbers or make data for a training, as far as they are known. The rule is fixed, since what a
target will import is not known before it runs (docs/decisions)."""

BIT_VARIABLES: Final = (
    "ATEN_CPU_CAPABILITY", "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS",
    "DISABLE_ADDMM_CUDA_LT", "DNNL_MAX_CPU_ISA", "FLASH_ATTENTION_DETERMINISTIC", "GOMP_CPU_AFFINITY",
    "KMP_DETERMINISTIC_REDUCTION", "MKL_CBWR", "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "NCCL_ALGO",
    "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NVLS_ENABLE", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "OMP_DYNAMIC", "OMP_NUM_THREADS", "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_DETERMINISTIC",
    "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUDNN_V8_API_DISABLED", "TORCH_LINALG_PREFER_CUSOLVER",
)  # fmt: skip
"""Variables of the environment that are known to change bits."""


def system() -> dict[str, str]:
    """Operating system, C library, CPU, locale and time zone."""
    cpu = _cpu_fields()
    family = "{} family {} model {}".format(*(cpu.get(name, "?") for name in ("vendor_id", "cpu family", "model")))
    libc = platform.libc_ver()
    environment = os.environ
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "distribution": _distribution(),
        "libc": " ".join(libc).strip() or "unknown",
        "cpu.model": cpu.get("model name", platform.processor() or "unknown"),
        "cpu.family": family if "vendor_id" in cpu else platform.machine(),
        "cpu.cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "python": platform.python_version(),
        "locale": environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "C",
        "time_zone": environment.get("TZ") or _local_time_zone(),
    }


def _cpu_fields() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _distribution() -> str:
    try:
        fields = platform.freedesktop_os_release()
    except OSError:
        return "unknown"
    return f"{fields.get('NAME', 'unknown')} {fields.get('VERSION_ID', '')}".strip()


def _local_time_zone() -> str:
    link = Path("/etc/localtime")
    return link.resolve().as_posix().rpartition("zoneinfo/")[2] if link.exists() else "UTC"


def torch_build() -> dict[str, str]:
    """Versions of torch and of the libraries that it was built with or has loaded."""
    import torch

    build = {"torch": torch.__version__, "torch.git": str(torch.version.git_version)}
    for line in torch.__config__.parallel_info().splitlines():
        if "Math Kernel Library Version" in line:
            build["torch.mkl"] = line.partition("Version ")[2].split(" ")[0]
        elif "MKL-DNN v" in line:
            build["torch.onednn"] = line.partition("MKL-DNN v")[2].split(" ")[0]
        elif "parallel backend" in line:
            build["torch.parallel"] = line.partition(": ")[2]
    if torch.version.cuda is not None:
        build["cuda"] = torch.version.cuda
        if torch._C._has_cudnn:  # torch.backends.cudnn.version() would initialise CUDA
            build["cudnn"] = str(torch._C._cudnn.getVersionInt())
        nccl = torch.cuda.nccl.version()
        build["nccl"] = ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl)
    return build


_ASK_CUDA: Final = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
number = ctypes.c_int()
if cuda.cuInit(0) == 0:
    cuda.cuDeviceGetCount(ctypes.byref(number))
for device in range(number.value):
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, device)
    values = []
    for attribute in (16, 75, 76):
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        values.append(value.value)
    print("%s, %d SMs, compute %d.%d" % (name.value.decode(), *values))
"""


@functools.cache
def gpus() -> tuple[str, ...]:
    """Name, SM count and compute capability of each visible GPU.

    Asked in a process of its own: ``cuInit`` here would break CUDA in every process forked later.
    """
    if not Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidiactl").exists():
        return ()
    command = [sys.executable, "-I", "-S", "-c", _ASK_CUDA]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return ("unreadable: the driver did not answer in 60 s",)
    if answer.returncode:
        return (f"unreadable: {(answer.stderr.strip().splitlines() or ['no message'])[-1]}",)
    return tuple(answer.stdout.splitlines())


def driver() -> str:
    """Version of NVIDIA's kernel driver; empty without one."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().splitlines()[0].split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), "unknown")


def packages(own: Collection[str] = ()) -> dict[str, str]:
    """Versions of the installed packages of ``NUMERIC_PACKAGES``, without the project's ``own``.

    Looked up where packages are installed and not below the project, so that a fresh process and a forked child agree.
    """
    extra = {entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    path = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages") or entry in extra]
    found = {}
    for name in NUMERIC_PACKAGES:
        if name not in own:
            for distribution in importlib.metadata.distributions(name=name, path=path):
                found[name] = distribution.version
                break
    return found
