# ruff: noqa: N802
"""`cuda.bindings.driver`, limited to the functions in use, and ONNX Runtime's CUDA provider, on the CUDA emulator.

It is an A100 whose memory is this process's.
A method is a function without its prefix: `_MemAlloc` is `cuMemAlloc`. As on a GPU, the error of a kernel is returned
by the next call that waits for it, and from then on by every call.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import cuda_emulator
import onnx
from cuda.bindings import nvrtc
from gpu_tools import tell_sanitizer

from intaglio.errors import EngineError
from intaglio.plugins.cuda.compiler import entry_points
from intaglio.plugins.cuda.launcher import GUARD
from intaglio.plugins.cuda.launching.geometry import Launch
from intaglio.plugins.cuda.launching.launches import kernel_folders

SM = 80
PROVIDER = "CUDAExecutionProvider"
STATUSES = (
    "CUDA_SUCCESS",
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_UNKNOWN",
)
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": SM // 10,
    "COMPUTE_CAPABILITY_MINOR": SM % 10,
    "MULTIPROCESSOR_COUNT": 108,
    "L2_CACHE_SIZE": 1 << 16,
    "ECC_ENABLED": 1,
    "CLOCK_RATE": 1_410_000,  # kHz
    "MEMORY_CLOCK_RATE": None,  # not told
}
ENQUEUED = ("cuLaunchKernel", "cuMemcpyDtoDAsync")
Status = enum.Enum("Status", STATUSES)
Attribute = enum.Enum("Attribute", [f"CU_DEVICE_ATTRIBUTE_{name}" for name in ATTRIBUTES])
OK = Status.CUDA_SUCCESS
UNMAPPED = 1 << 50  # added to an address, it is none


class Driver:
    """The module; `fault` of `kernel` is injected."""

    CUresult, CUdevice_attribute, CUstreamCaptureMode = Status, Attribute, int

    def __init__(self, fault: str, kernel: str) -> None:
        self._fault, self._kernel = fault, kernel
        self._memory: dict[int, int] = {}  # address -> bytes
        self._modules: dict[int, bytes] = {}
        self._events: dict[int, float] = {}
        self._handles = itertools.count(1)
        self._failed = OK
        self._captured: list[Any] | None = None  # what a stream enqueues meanwhile, for a graph
        self._ran: set[tuple[Any, ...]] = set()  # launches; nothing else wrote to the memory since
        self._launched = ""
        if fault == "missing library":
            nvrtc.nvrtcVersion = self._missing

    def _missing(self) -> None:
        raise RuntimeError("libnvrtc.so.13 was not found")

    def __getattr__(self, name: str) -> Any:
        """A driver's function: one that fails, or that of this class without `cu`."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(self, f"_{name.removeprefix('cu')}")

        def run(*arguments: Any) -> tuple[Any, ...]:
            if self._failed is not OK:
                return (self._failed,)
            if self._captured is not None and name in ENQUEUED:
                self._captured.append((function, arguments))
                return (OK,)
            return tuple(function(*arguments))

        return run

    def _Init(self, flags: int) -> tuple[Any, ...]:
        if self._fault == "not supported":
            return (Status.CUDA_ERROR_UNKNOWN,)
        if self._fault == "no driver":
            raise RuntimeError("libcuda.so.1 was not found")
        return (OK,)

    def _DriverGetVersion(self) -> tuple[Any, ...]:
        return OK, 13000

    def _DeviceGet(self, number: int) -> tuple[Any, ...]:
        return OK, number

    def _DeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return OK, b"Emulated A100".ljust(length, b"\0")

    def _DeviceTotalMem(self, device: int) -> tuple[Any, ...]:
        return OK, 40 << 30

    def _DeviceGetAttribute(self, attribute: Attribute, device: int) -> tuple[Any, ...]:
        value = ATTRIBUTES[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]
        return (Status.CUDA_ERROR_INVALID_VALUE,) if value is None else (OK, value)

    def _DevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return OK, 1

    def _CtxSetCurrent(self, context: int) -> tuple[Any, ...]:
        return (OK,)

    def _CtxSynchronize(self) -> tuple[Any, ...]:
        if self._fault == "timeout" and self._launched == self._kernel:
            time.sleep(3600)
        return (self._failed,)

    def _ModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        if self._fault == "load failed":
            return (Status.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,)
        if not image.startswith(b"\x7fELF") and not image.endswith(b"\0"):
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        self._modules[module := next(self._handles)] = image
        return OK, module

    def _ModuleGetFunction(self, module: int, name: bytes) -> tuple[Any, ...]:
        return (OK, name.decode()) if name in self._modules[module] else (Status.CUDA_ERROR_NOT_FOUND,)

    def _MemAlloc(self, size: int) -> tuple[Any, ...]:
        address = cuda_emulator._library("requantize", SM).emulation_allocate(size)
        self._memory[address] = size
        return OK, address

    def _MemFree(self, address: int) -> tuple[Any, ...]:
        size = self._memory.pop(address)
        inside = cuda_emulator._library("requantize", SM).emulation_release(ctypes.c_void_p(address), size)
        return (OK if inside else Status.CUDA_ERROR_ILLEGAL_ADDRESS,)

    def _MemcpyHtoD(self, target: int, source: int, size: int) -> tuple[Any, ...]:
        return self._copy(target, source, size)

    _MemcpyDtoH = _MemcpyHtoD

    def _MemcpyDtoDAsync(self, target: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._copy(target, source, size)

    def _copy(self, target: int, source: int, size: int) -> tuple[Any, ...]:
        ctypes.memmove(target, source, size)
        self._ran.clear()
        return (OK,)

    def _MemsetD8(self, target: int, value: int, size: int) -> tuple[Any, ...]:
        assert self._memory[target] >= size
        ctypes.memset(target, value, size)
        self._ran.clear()
        return (OK,)

    def _StreamCreate(self, flags: int) -> tuple[Any, ...]:
        return OK, next(self._handles)

    def _StreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        return (self._failed,)

    def _StreamBeginCapture(self, stream: int, mode: Any) -> tuple[Any, ...]:
        self._captured = []
        return (OK,)

    def _StreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        captured, self._captured = self._captured, None
        return OK, captured

    def _GraphInstantiate(self, graph: list[Any], flags: int) -> tuple[Any, ...]:
        return OK, graph

    def _GraphLaunch(self, graph: list[Any], stream: int) -> tuple[Any, ...]:
        """Run what was captured, once: a launch writes the same each time."""
        while graph:
            function, arguments = graph.pop(0)
            if self._failed is OK and function(*arguments)[0] is not OK:
                self._failed = Status.CUDA_ERROR_LAUNCH_FAILED
        return (OK,)

    def _nothing(self, handle: Any) -> tuple[Any, ...]:
        return (OK,)

    _StreamDestroy = _GraphDestroy = _GraphExecDestroy = _EventDestroy = _nothing

    def _EventCreate(self, flags: int) -> tuple[Any, ...]:
        return OK, next(self._handles)

    def _EventRecord(self, event: int, stream: int) -> tuple[Any, ...]:
        self._events[event] = time.perf_counter()
        return (OK,)

    def _EventSynchronize(self, event: int) -> tuple[Any, ...]:
        return (self._failed,)

    def _EventElapsedTime(self, begin: int, end: int) -> tuple[Any, ...]:
        return OK, max(1000 * (self._events[end] - self._events[begin]), 1e-6)

    def _LaunchKernel(self, function: str, *parameters: Any) -> tuple[Any, ...]:
        """Run the kernel at once; nothing if the same one ran before, as it would write the same."""
        *sizes, shared, stream, (values, types), _ = parameters
        fault = self._fault if function == self._kernel else ""
        if fault == "launch failed" or (fault == "not measured" and stream):
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        if fault == "crashed":
            os.abort()
        if fault == "not run" or (function, tuple(sizes), values) in self._ran:
            return (OK,)
        self._ran.add((function, tuple(sizes), values))
        self._launched = function
        scalars = tuple(value for value, kind in zip(values, types, strict=True) if kind is ctypes.c_int32)
        before = types.index(ctypes.c_int32)
        inputs, outputs = list(values[:before]), list(values[before + len(scalars) :])
        if fault in ("illegal address", "invalid read"):
            tell_sanitizer(function)
        if fault == "illegal address":
            outputs = [address + UNMAPPED for address in outputs]
        folder = next(folder for folder in kernel_folders() if function in entry_points(folder))
        launch = Launch(function, tuple(sizes[:3]), tuple(sizes[3:]), scalars, shared)
        cuda_emulator._check_launch(launch)
        try:
            cuda_emulator._run(cuda_emulator._library(folder, SM), launch, inputs, outputs, 0)
        except EngineError as error:
            illegal = "touches the address" in str(error)
            self._failed = Status.CUDA_ERROR_ILLEGAL_ADDRESS if illegal else Status.CUDA_ERROR_LAUNCH_FAILED
        end = next(base + size for base, size in self._memory.items() if base <= outputs[0] % UNMAPPED < base + size)
        if fault == "wrong bits" and end - outputs[0] > GUARD:  # not of an empty output
            ctypes.c_uint8.from_address(outputs[0]).value ^= 1
        if fault == "overrun":
            ctypes.c_uint8.from_address(end - 1).value = 0
        return (OK,)


def give_onnxruntime_a_gpu(fault: str, kernel: str) -> None:
    """Let ONNX Runtime's CPU provider stand in for its CUDA provider; `fault` of `kernel` is injected."""
    import emulated_driver
    import onnxruntime

    from intaglio.plugins import ort

    class Session(onnxruntime.InferenceSession):
        def __init__(self, model: bytes, options: Any, providers: list[Any], **settings: Any):
            super().__init__(model, options, providers=providers[1:], **settings)
            (node,) = onnx.load_from_string(model).graph.node
            entry = next(each.s.decode() for each in node.attribute if each.name == "kernel")
            self._wrong = fault == "wrong bits" and entry == kernel
            driver.refuses = fault == "illegal address" and entry == kernel
            if fault == "crashed" and entry == kernel:
                os.abort()

        def get_providers(self) -> list[str]:
            return super().get_providers() if fault == "no CUDA" else [PROVIDER]

        def run(self, names: Any, feeds: Any) -> Any:
            outputs = super().run(names, feeds)
            if self._wrong and outputs[0].size:
                outputs[0].reshape(-1)[0] ^= 1
            return outputs

    driver = emulated_driver.EmulatedDriver(SM)
    path = emulated_driver.emulated_library(Path(tempfile.mkdtemp()))
    ort.library = lambda: path
    onnxruntime.InferenceSession = Session
    onnxruntime.get_available_providers = lambda: [PROVIDER, "CPUExecutionProvider"]
