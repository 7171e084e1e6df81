"""Names of GPUs and their compute capabilities, and the GPU of this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from intaglio.errors import EngineError, UsageError
from intaglio.extras import load

# GPU -> compute capability times ten ("SM"), from https://developer.nvidia.com/cuda-gpus.
SM = {
    name: sm
    for sm, names in {
        75: "t4 rtx-2080",
        80: "a100 a30",
        86: "a10 a10g a40 rtx-3060 rtx-3070 rtx-3080 rtx-3090",
        89: "l4 l40 l40s rtx-4060 rtx-4070 rtx-4080 rtx-4090",
        90: "h100 h200 gh200",
        100: "b200",
        120: "rtx-5060 rtx-5070 rtx-5080 rtx-5090",
        121: "gb10",
    }.items()
    for name in names.split()
}


@dataclass(frozen=True)
class Gpu:
    """A GPU to build for, or the one of this machine."""

    name: str  # "t4"; "sm103" for a device that is not in the table
    sm: int  # compute capability times ten


def named(name: str) -> Gpu:
    """The GPU called `name` in the table. Raises `UsageError` with the known names."""
    if name.lower() not in SM:
        raise UsageError(f"--gpu {name}: unknown, expected one of {', '.join(SM)}.")
    return Gpu(name.lower(), SM[name.lower()])


def check_compilable(gpu: Gpu, trt: Any) -> None:
    """Raise `UsageError` if TensorRT-RTX (the module `trt`) cannot compile for `gpu` without that GPU present."""
    members = trt.ComputeCapability.__members__
    if f"SM{gpu.sm}" not in members:
        names = [name for name, sm in SM.items() if f"SM{sm}" in members]
        raise UsageError(
            f"--gpu {gpu.name}: TensorRT-RTX {trt.__version__} does not compile for SM{gpu.sm}, only for "
            f"{', '.join(names)}. Build on a machine with that GPU, with --target tensorrt."
        )


def present() -> Gpu | None:
    """The current CUDA device, or None without a device or a driver.

    Raises `MissingExtraError` if CUDA's Python bindings are not installed.
    """
    runtime = load("cuda.bindings.runtime")
    absent = (runtime.cudaError_t.cudaErrorNoDevice, runtime.cudaError_t.cudaErrorInsufficientDriver)
    status, device = runtime.cudaGetDevice()
    if status in absent:
        return None
    check_status(runtime, "cudaGetDevice", status)
    status, properties = runtime.cudaGetDeviceProperties(device)
    check_status(runtime, "cudaGetDeviceProperties", status)
    return recognised(properties.name.decode(), 10 * properties.major + properties.minor)


def recognised(product: str, sm: int) -> Gpu:
    """The table's GPU for a product name such as "NVIDIA A100-SXM4-40GB"; "sm80" if the table has none."""
    words = set(re.split(r"[^a-z0-9]+", product.lower()))
    matches = [name for name, known in SM.items() if known == sm and set(name.split("-")) <= words]
    return Gpu(matches[0] if matches else f"sm{sm}", sm)


def check_status(runtime: Any, call: str, status: Any) -> None:
    """Raise `EngineError` unless a CUDA call returned success; `runtime` is `cuda.bindings.runtime`."""
    if status == runtime.cudaError_t.cudaSuccess:
        return
    _, text = runtime.cudaGetErrorString(status)
    fix = "Check the GPU and its driver with nvidia-smi, or use --target ort-cpu."
    if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
        fix = "Run smaller batches or shorter sequences, or free the GPU's memory."
    raise EngineError(f"{call} failed: {text.decode()}. {fix}")
