"""The GPU of this machine and the versions of the libraries, for a report that is read elsewhere."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

from intaglio.errors import EngineError, MissingExtraError
from intaglio.plugins.cuda.compiler import nvrtc_version
from intaglio.plugins.cuda.driver import attribute, call, cuda_version
from intaglio.plugins.cuda.launcher import device
from intaglio.validation.gpu_check.results import Machine
from intaglio.version import __version__

# Library -> the packages that bring it.
PACKAGES = {
    "cuda-bindings": ("cuda-bindings",),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "tensorrt-rtx": ("tensorrt-rtx",),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
    "numpy": ("numpy",),
}


def machine() -> Machine:
    """Ask the driver and the installed packages. Raises `EngineError` without a GPU."""
    gpu, sm = device()
    versions = {library: _installed(names) for library, names in PACKAGES.items()}
    with suppress(MissingExtraError):
        versions["nvrtc"] = ".".join(map(str, nvrtc_version()))
    return Machine(
        gpu=call("cuDeviceGetName", 100, gpu).split(b"\0")[0].decode(errors="replace").strip(),
        sm=sm,
        memory_bytes=int(call("cuDeviceTotalMem", gpu)),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT", gpu),
        cache_bytes=attribute("L2_CACHE_SIZE", gpu),
        ecc=bool(attribute("ECC_ENABLED", gpu)),
        clock_mhz=_megahertz("CLOCK_RATE", gpu),
        memory_clock_mhz=_megahertz("MEMORY_CLOCK_RATE", gpu),
        driver_cuda=".".join(map(str, cuda_version())),
        versions={"intaglio": __version__, "nvrtc": None} | versions,
    )


def _megahertz(name: str, gpu: object) -> float | None:
    with suppress(EngineError):
        return attribute(name, gpu) / 1000 or None
    return None


def _installed(names: tuple[str, ...]) -> str | None:
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None
