"""The system, the processor, and the GPUs of this machine, without a package for CUDA."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

import msgspec

from intaglio.validation.doctor.private import without_home

CUDA_DRIVER = "libcuda.so.1"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, of cuda.h
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
SETTINGS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "XDG_CACHE_HOME")  # and INTAGLIO_*


class System(msgspec.Struct, frozen=True):
    """The interpreter and the machine."""

    python: str
    system: str  # "Linux 6.1.0 x86_64, glibc 2.36"
    processor: str
    processors: int  # that this process may use
    memory_bytes: int
    environment: dict[str, str]  # variables that change what Intaglio does


class Gpus(msgspec.Struct, frozen=True):
    """The GPUs, and the driver that offers them."""

    driver: str | None  # of NVIDIA, such as "580.65.06"
    cuda: str | None  # the newest CUDA that it supports
    devices: list[str]  # "NVIDIA H100 80GB HBM3, sm_90"
    problem: str | None


def system() -> System:
    """Describe the interpreter and the machine."""
    names = [name for name in os.environ if name.startswith("INTAGLIO_") or name in SETTINGS]
    libc = " ".join(platform.libc_ver())
    return System(
        f"{platform.python_implementation()} {platform.python_version()}, {without_home(sys.executable)}",
        f"{platform.system()} {platform.release()} {platform.machine()}, {libc or 'no glibc'}",
        _processor(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        {name: without_home(os.environ[name]) for name in sorted(names)},
    )


def _processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def gpus() -> Gpus:
    """Ask NVIDIA's driver. A machine without one has no GPU, which is no problem."""
    try:
        driver = ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return Gpus(None, None, [], None)
    try:
        return _ask(driver)
    except AttributeError as error:
        return Gpus(None, None, [], f"{CUDA_DRIVER} is not NVIDIA's driver, or is damaged: {error}. Install it again.")


def _ask(driver: ctypes.CDLL) -> Gpus:
    """What a driver says. Raises `AttributeError` for a library that lacks one of its functions."""
    number, count, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    driver.cuDriverGetVersion(ctypes.byref(number))
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if (status := driver.cuInit(0)) not in (0, NO_DEVICE):
        problem = f"NVIDIA's driver does not start: cuInit returned {status}. See: nvidia-smi"
        return Gpus(_driver_version(), cuda, [], problem)
    if status == 0:
        driver.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for index in range(count.value):
        driver.cuDeviceGetName(text, len(text), index)
        capability = []
        for attribute in (MAJOR, MINOR):
            driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, index)
            capability.append(str(number.value))
        devices.append(f"{text.value.decode(errors='replace')}, sm_{''.join(capability)}")
    return Gpus(_driver_version(), cuda, devices, None)


def _driver_version() -> str | None:
    """The version of the kernel's module, from "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ..."."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") in (1, 2) and word.replace(".", "").isdigit()), None)
