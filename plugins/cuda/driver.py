"""The NVIDIA driver of this machine: its calls, and whether it reads the kernels' PTX."""

from __future__ import annotations

from typing import Any

from intaglio import extras
from intaglio.errors import EngineError
from intaglio.plugins.cuda.compiler import PTX_VERSIONS

# The first CUDA release whose driver reads a PTX version (PTX ISA, "Release Notes").
CUDA_OF_PTX = {(6, 5): (10, 2), (7, 0): (11, 0), (7, 8): (11, 8)}


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver; return its result, or raise `EngineError` with the status."""
    driver = extras.load("cuda.bindings.driver")
    status, *results = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise EngineError(f"{name} failed: {status.name}. Check with nvidia-smi that a GPU is free.")
    return results[0] if results else None


def check_driver(sm: int) -> None:
    """Raise `EngineError` if this machine has a driver that is too old for the kernels of `sm`.

    A machine without a driver may build for others.
    """
    try:
        number = int(call("cuDriverGetVersion"))
    except (RuntimeError, EngineError):  # the library is missing, or a stub that has no version
        return
    version, needed = (number // 1000, number % 1000 // 10), CUDA_OF_PTX[PTX_VERSIONS[sm]]
    if number > 0 and version < needed:
        raise EngineError(
            f"NVIDIA driver: supports CUDA {version[0]}.{version[1]}, the kernels of sm_{sm} need "
            f"{needed[0]}.{needed[1]} or newer. Update the driver."
        )
