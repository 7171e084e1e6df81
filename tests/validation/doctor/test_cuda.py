"""`intaglio doctor` and the driver of GPUs, by a library in the place of NVIDIA's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from package_metadata import fake

from intaglio.validation.doctor import machine
from intaglio.validation.doctor.doctor import doctor

# Two GPUs and CUDA's VERSION, or a driver whose start fails with STATUS.
DRIVER = r"""
#include <string.h>
extern "C" {
int cuInit(unsigned) { return STATUS; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGetName(char* name, int, int device) { strcpy(name, device ? "NVIDIA T4" : "NVIDIA H100"); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    *value = attribute == 75 ? (device ? 7 : 9) : (device ? 5 : 0);
    return 0;
}
}
"""


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Put a driver in the place of NVIDIA's, with the status of its start and its version of CUDA."""
    compiler = shutil.which("c++") or pytest.skip("no compiler for a driver in the place of NVIDIA's")

    def install(status: int, version: int) -> None:
        path = tmp_path / f"libcuda-{status}-{version}.so"
        (tmp_path / "driver.cpp").write_text(DRIVER)
        command = [compiler, "-shared", "-fPIC", f"-DSTATUS={status}", f"-DVERSION={version}", "driver.cpp", "-o", path]
        subprocess.run(command, cwd=tmp_path, check=True)
        monkeypatch.setattr(machine, "CUDA_DRIVER", str(path))

    return install


def test_libraries_for_a_newer_cuda_than_the_drivers_are_named(site: Path, drivers: Callable[[int, int], None]) -> None:
    fake(site, "intaglio", "0.1.0")
    runtime = ("numpy", "nvidia-cuda-nvrtc-cu12; extra == 'cuda'", "nvidia-cuda-runtime~=13.0; extra == 'cuda'")
    fake(site, "onnxruntime-gpu", "1.31", *runtime, extras=("cuda",))
    fake(site, "nvidia-cuda-runtime", "13.0.88")
    fake(site, "nvidia-cuda-nvrtc-cu12", "12.9.1")  # within CUDA 12, a driver runs newer libraries, too
    fake(site, "tensorrt", "11.4", "tensorrt-cu13==11.4", "nvidia-cublas-cu12")
    fake(site, "tensorrt-cu13", "11.4")
    fake(site, "tensorrt-rtx", "1.7", "tensorrt_rtx_cu12==1.7")
    fake(site, "tensorrt-rtx-cu12", "1.7")
    drivers(0, 12040)
    old = doctor().problems
    assert [line.partition(". ")[0] for line in old if "is built for CUDA" in line] == [
        "onnxruntime-gpu 1.31 is built for CUDA 13 (with nvidia-cuda-runtime 13.0.88), and the driver "
        f"{machine.gpus().driver or 'here'} supports CUDA 12.4",
        "tensorrt 11.4 is built for CUDA 13 (with tensorrt-cu13 11.4), and the driver "
        f"{machine.gpus().driver or 'here'} supports CUDA 12.4",
    ]
    for status, version in ((0, 13000), (100, 12040)):  # new enough; without a GPU
        drivers(status, version)
        assert not [line for line in doctor().problems if "is built for CUDA" in line]


@pytest.mark.parametrize(
    ("status", "devices", "problem"),
    [
        (0, ["NVIDIA H100, sm_90", "NVIDIA T4, sm_75"], None),
        (100, [], None),
        (803, [], "NVIDIA's driver does not start: cuInit returned 803. See: nvidia-smi"),
    ],
)
def test_driver_lists_its_gpus(
    status: int, devices: list[str], problem: str | None, drivers: Callable[..., None]
) -> None:
    drivers(status, 13020)
    found = machine.gpus()
    assert (found.cuda, found.devices, found.problem) == ("13.2", devices, problem)


def test_library_without_the_drivers_functions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CUDA_DRIVER", "libc.so.6")
    problem = machine.gpus().problem
    assert problem is not None and "libc.so.6 is not NVIDIA's driver, or is damaged" in problem
