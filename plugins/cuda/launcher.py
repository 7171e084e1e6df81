"""Launch an operator's CUDA kernel on a GPU, from arrays to arrays; used by tests on machines with a GPU.

Engines do not use it: TensorRT launches the kernels itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from intaglio import extras
from intaglio.errors import EngineError, one_line
from intaglio.plugins.cuda.compiler import SMS, compile_kernel, only
from intaglio.plugins.cuda.driver import call, check_driver
from intaglio.plugins.cuda.geometry import Launch, at_least_1

Array = npt.NDArray[np.generic]
Image = Literal["cubin", "ptx"]


def device_sm() -> int | None:
    """The compute capability times ten of the first GPU, such as 75; None without a GPU or driver."""
    try:
        return _device()
    except EngineError:
        return None


def run(
    folder: str,
    launch: Launch,
    inputs: Sequence[Array | None],
    outputs: Sequence[tuple[Sequence[int], npt.DTypeLike]],
    image: Image | None = None,
) -> list[Array]:
    """Run a kernel of the operator in `plugins/<folder>` on the first GPU; return the outputs, by shape and dtype.

    `launch` is for `kernel_sm()`. `image`: the form in which the kernel is loaded; PTX is that in a TensorRT engine. An
    empty grid has one block, as when TensorRT launches it. Raises `EngineError` without a supported GPU, and for any
    error of the driver.
    """
    function = _function(folder, launch.entry, image)
    made = [np.empty(tuple(shape), dtype) for shape, dtype in outputs]
    with ExitStack() as held:
        given = [np.ascontiguousarray(array) for array in inputs if array is not None]
        pointers = [held.enter_context(_on_device(array)) for array in given]
        results = [held.enter_context(_on_device(array)) for array in made]
        values = (*pointers, *launch.scalars, *results)
        types = (ctypes.c_void_p,) * len(pointers) + (ctypes.c_int32,) * len(launch.scalars)
        types += (ctypes.c_void_p,) * len(results)
        grid = map(at_least_1, launch.grid)
        call("cuLaunchKernel", function, *grid, *launch.block, launch.shared_bytes, 0, (values, types), 0)
        call("cuCtxSynchronize")
        for array, pointer in zip(made, results, strict=True):
            if array.nbytes:
                call("cuMemcpyDtoH", array.ctypes.data, pointer, array.nbytes)
    return made


@contextmanager
def _on_device(array: Array) -> Iterator[int]:
    """The address of a copy of `array` in the GPU's memory."""
    pointer = call("cuMemAlloc", max(array.nbytes, 1))
    try:
        if array.nbytes:
            call("cuMemcpyHtoD", pointer, array.ctypes.data, array.nbytes)
        yield int(pointer)
    finally:
        call("cuMemFree", pointer)


@cache
def _device() -> int:
    """Make the first GPU's primary context current; return its compute capability times ten."""
    driver = extras.load("cuda.bindings.driver")
    try:
        call("cuInit", 0)
    except RuntimeError as error:  # the driver's library is not there
        raise EngineError(
            f"no CUDA device: {one_line(error, 200).rstrip('.')}. Run this on a machine with one."
        ) from error
    device = call("cuDeviceGet", 0)
    attribute = driver.CUdevice_attribute
    major = call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    return 10 * int(major) + int(minor)


def kernel_sm() -> int:
    """The compute capability that the first GPU's kernels are built for. Raises `EngineError` if it is too old."""
    sm = _device()
    built_for = max((known for known in SMS if known <= sm), default=None)
    if built_for is None:
        raise EngineError(f"no CUDA device that the kernels run on: got sm_{sm}, expected sm_{min(SMS)} or newer.")
    return built_for


@cache
def _function(folder: str, entry: str, image: Image | None) -> Any:
    """The loaded kernel: by default the cubin for a GPU of the same generation, else PTX, which the driver compiles."""
    built_for = kernel_sm()
    check_driver(built_for)
    compiled = compile_kernel(folder, built_for)
    as_cubin = built_for // 10 == _device() // 10 if image is None else image == "cubin"
    data = compiled.cubin if as_cubin else only(compiled.ptx, entry) + b"\0"
    return call("cuModuleGetFunction", call("cuModuleLoadData", data), entry.encode())
