"""The NVIDIA driver of this machine: its calls, and whether it reads the kernels' PTX."""

from __future__ import annotations

from typing import Any

from intaglio import extras
from intaglio.errors import EngineError
from intaglio.plugins.cuda.compiler import PTX_VERSIONS

# The first CUDA release whose driver reads a PTX version (PTX ISA, "Release Notes").
CUDA_OF_PTX = {(6, 5): (10, 2), (7, 0): (11, 0), (7, 8): (11, 8)}


_KERNEL = "A kernel is wrong: send us the report of `intaglio gpu-check`"
_IMAGE = "Update the driver; if it is new, send us the report of `intaglio gpu-check`"
# Status -> what to do about it.
ADVICE = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": _KERNEL,
    "CUDA_ERROR_MISALIGNED_ADDRESS": _KERNEL,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": _KERNEL,
    "CUDA_ERROR_LAUNCH_FAILED": _KERNEL,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": _KERNEL,
    "CUDA_ERROR_INVALID_PTX": _IMAGE,
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": _IMAGE,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": _IMAGE,
}


class DriverError(EngineError):
    """A function of the driver failed: its name, and the status, such as CUDA_ERROR_ILLEGAL_ADDRESS."""

    def __init__(self, function: str, status: str):
        super().__init__(
            f"{function} failed: {status}. {ADVICE.get(status, 'Check with nvidia-smi that a GPU is free')}."
        )
        self.function, self.status = function, status


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver; return its result, or raise `DriverError` with the status."""
    driver = extras.load("cuda.bindings.driver")
    status, *results = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(name, status.name)
    return results[0] if results else None


def attribute(name: str, device: Any) -> int:
    """An attribute of a GPU, such as "L2_CACHE_SIZE"; raises `DriverError`."""
    known = extras.load("cuda.bindings.driver").CUdevice_attribute
    return int(call("cuDeviceGetAttribute", getattr(known, f"CU_DEVICE_ATTRIBUTE_{name}"), device))


def cuda_version() -> tuple[int, int]:
    """The CUDA version that the driver supports, such as (13, 0); (0, 0) without one. Raises `DriverError`."""
    number = int(call("cuDriverGetVersion"))
    return number // 1000, number % 1000 // 10


def check_driver(sm: int) -> None:
    """Raise `EngineError` if this machine has a driver that is too old for the kernels of `sm`.

    A machine without a driver may build for others.
    """
    try:
        version = cuda_version()
    except (RuntimeError, EngineError):  # the library is missing, or a stub that has no version
        return
    needed = CUDA_OF_PTX[PTX_VERSIONS[sm]]
    if (0, 0) < version < needed:
        raise EngineError(
            f"NVIDIA driver: supports CUDA {version[0]}.{version[1]}, the kernels of sm_{sm} need "
            f"{needed[0]}.{needed[1]} or newer. Update the driver."
        )
