# ruff: noqa: N802
"""A stand-in for `cuda.bindings.driver` on the stand-in for a GPU's memory: kernels of ours run on the emulator."""

from __future__ import annotations

import ctypes
import enum
import functools
import sys
import threading
from types import SimpleNamespace
from typing import Any

import cuda_emulator
import pytest

from intaglio.plugins.cuda import launcher
from intaglio.plugins.cuda.compiler import Compiled, entry_points
from intaglio.plugins.cuda.launching.geometry import Launch
from intaglio.plugins.cuda.launching.launches import kernel_folders

SM = 80
CONTEXT = 7


class _Status(enum.Enum):
    CUDA_SUCCESS = 0


OK = _Status.CUDA_SUCCESS


class Driver:
    """The module. `launches`: the names of the kernels that ran, and how many blocks each had along y."""

    CUresult = _Status
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=SM // 10, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=SM % 10
    )

    def __init__(self, streams: set[int]) -> None:
        self.launches: list[tuple[str, int]] = []
        self._streams, self._contexts = streams, threading.local()

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (OK,)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return OK, 13000

    def cuDeviceGet(self, number: int) -> tuple[Any, ...]:
        return OK, number

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[Any, ...]:
        return OK, attribute

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return OK, CONTEXT

    def cuCtxSetCurrent(self, context: int) -> tuple[Any, ...]:
        return (OK,)  # of the thread in which the GPU is found, which no launch relies on

    def cuCtxPushCurrent(self, context: int) -> tuple[Any, ...]:
        self._stack.append(context)
        return (OK,)

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return OK, self._stack.pop()

    @property
    def _stack(self) -> list[int]:
        """The contexts of this thread."""
        if not hasattr(self._contexts, "stack"):
            self._contexts.stack = []
        stack: list[int] = self._contexts.stack
        return stack

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        assert self._stack == [CONTEXT]
        return OK, image

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> tuple[Any, ...]:
        return OK, name.decode()

    def cuLaunchKernel(self, function: str, *parameters: Any) -> tuple[Any, ...]:
        *sizes, shared, stream, (values, types), _ = parameters
        assert self._stack == [CONTEXT] and stream in self._streams
        before, scalars = types.index(ctypes.c_int32), types.count(ctypes.c_int32)
        folder = next(folder for folder in kernel_folders() if function in entry_points(folder))
        launch = Launch(function, tuple(sizes[:3]), tuple(sizes[3:]), tuple(values[before : before + scalars]), shared)
        cuda_emulator._check_launch(launch)
        with cuda_emulator._running:
            inputs, outputs = list(values[:before]), list(values[before + scalars :])
            cuda_emulator._run(cuda_emulator._library(folder, SM), launch, inputs, outputs, 0)
        self.launches.append((function, sizes[1]))
        return (OK,)


def install(patch: pytest.MonkeyPatch, streams: set[int]) -> Driver:
    """Let `launcher` launch kernels on the emulator; `streams` are those that exist."""
    driver = Driver(streams)
    patch.setitem(sys.modules, "cuda.bindings.driver", driver)
    patch.setattr(launcher, "compile_kernel", lambda *_: Compiled(b".version 7.0", b"\x7fELF", ""))
    for cached in ("device", "_context", "_function"):
        patch.setattr(launcher, cached, fresh(getattr(launcher, cached)))
    return driver


def fresh(cached: Any) -> Any:
    """A function with a cache of its own."""
    return functools.cache(cached.__wrapped__)
