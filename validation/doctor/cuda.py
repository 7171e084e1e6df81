"""Whether NVIDIA's driver is new enough for the installed libraries: one for CUDA 12 runs none built for CUDA 13."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from intaglio.validation.doctor.machine import Gpus
from intaglio.validation.doctor.packages import Metadata, metadata, requirements

# What runs on the GPU. NVRTC only compiles, and the PTX of the kernels states the oldest version that its GPU allows.
RUNNING = ("onnxruntime-gpu", "tensorrt", "tensorrt-rtx")
RELEASE = "nvidia-cuda-runtime"  # its version is CUDA's; the names of others end with CUDA's, as in tensorrt-cu13


def driver_problems(gpus: Gpus) -> list[str]:
    """A line for each package whose CUDA the driver does not support. Without a GPU, packages may serve to compile."""
    if gpus.cuda is None or not gpus.devices:
        return []
    supported, problems = int(gpus.cuda.partition(".")[0]), {}
    for package in filter(None, map(metadata, RUNNING)):
        for library, built_for in _libraries(package):
            if built_for > supported:
                problems[package.name] = (
                    f"{package.name} {package.version} is built for CUDA {built_for} (with {library}), and the driver "
                    f"{gpus.driver or 'here'} supports CUDA {gpus.cuda}. Update the driver, or install a build for "
                    f"CUDA {supported}."
                )
    return list(problems.values())


def _libraries(package: Metadata) -> Iterator[tuple[str, int]]:
    """The installed packages that a package or one of its extras requires, with the CUDA that they are built for."""
    for each in requirements(package, {"", *package.extras}):
        name, found = canonicalize_name(each.name), metadata(each.name)
        release = found.version if found and name == RELEASE else name
        if found and (built_for := re.search(r"(?:^|-cu)(\d+)(?=[.-]|$)", release)):
            yield f"{each.name} {found.version}", int(built_for[1])
