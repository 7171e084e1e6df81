"""Launch an operator's CUDA kernel on a GPU, from arrays to arrays, and measure it; used by `gpu-check` and tests.

Engines do not use it: TensorRT launches the kernels itself.
"""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio import extras
from intaglio.errors import EngineError, one_line
from intaglio.plugins.cuda.compiler import Image, built_for, compile_kernel, images, only
from intaglio.plugins.cuda.driver import attribute, call, check_driver
from intaglio.plugins.cuda.launching.geometry import Launch, at_least_1

Array = npt.NDArray[np.generic]
Output = tuple[Sequence[int], npt.DTypeLike]

GUARD = 256  # bytes around each array, as many as any alignment; a write to them would else go unnoticed
POISON = 0xA5  # their value, and that of every output before the kernel runs: memory may still hold the right result
WARM_UP, REPEATS = 3, 11
BATCH = 20  # launches between two events, as one may take less time than the events' resolution
CACHES = 8  # times the L2 cache is what a measured copy reads, and writes; twice as much as it is written between


class OverrunError(EngineError):
    """A kernel wrote outside of its outputs."""


@dataclass(frozen=True)
class Times:
    """The time of a launch in microseconds, medians: its arrays still in the L2 cache if they fit, and none of them."""

    warm_us: float
    cold_us: float


def device_sm() -> int | None:
    """The compute capability times ten of the first GPU, such as 75; None without a GPU or driver."""
    try:
        return device()[1]
    except EngineError:
        return None


@cache
def device() -> tuple[Any, int]:
    """Make the first GPU's primary context current; return the GPU and its compute capability times ten.

    Raises `EngineError` without a GPU.
    """
    extras.load("cuda.bindings.driver")
    try:
        call("cuInit", 0)
    except RuntimeError as error:  # the driver's library is not there
        raise EngineError(
            f"no CUDA device: {one_line(error, 200).rstrip('.')}. Run this on a machine with one."
        ) from error
    first = call("cuDeviceGet", 0)
    sm = 10 * attribute("COMPUTE_CAPABILITY_MAJOR", first) + attribute("COMPUTE_CAPABILITY_MINOR", first)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", first))
    return first, sm


def kernel_sm() -> int:
    """The compute capability that the first GPU's kernels are built for. Raises `EngineError` if it is too old."""
    return built_for(device()[1])


def run(
    folder: str,
    launch: Launch,
    inputs: Sequence[Array | None],
    outputs: Sequence[Output],
    image: Image | None = None,
    offset: int = 0,
) -> list[Array]:
    """Run a kernel of the operator in `plugins/<folder>` on the first GPU; return the outputs, by shape and dtype.

    `launch` is for `kernel_sm()`. `image`: the form in which the kernel is loaded; PTX is that in a TensorRT engine.
    Arrays begin `offset` bytes behind an aligned address. An empty grid has one block, as when TensorRT launches it.
    Raises `EngineError` without a supported GPU, and for any error of the driver, `OverrunError` for a write around an
    output.
    """
    with _ready(folder, launch, inputs, outputs, image, offset) as (start, results):
        start()
        call("cuCtxSynchronize")
        blocks = [_read(pointer, _bytes(output)) for pointer, output in zip(results, outputs, strict=True)]
    for number, block in enumerate(blocks):
        if (np.concatenate([block[:GUARD], block[-GUARD:]]) != POISON).any():
            raise OverrunError(f"{launch.entry}: writes outside of output {number}. Guard the tails.")
    return [
        block[GUARD:-GUARD].view(dtype).reshape(tuple(shape))
        for block, (shape, dtype) in zip(blocks, outputs, strict=True)
    ]


def measure(
    folder: str,
    launch: Launch,
    inputs: Sequence[Array | None],
    outputs: Sequence[Output],
    image: Image | None = None,
) -> Times:
    """Measure the time of a launch by events of the GPU; parameters and errors as in `run`."""
    flushed = 2 * _cache_bytes()
    with _ready(folder, launch, inputs, outputs, image, 0) as (start, _), _allocated(flushed) as other:
        warm = _median(start, BATCH)
        cold = _median(start, 1, lambda: call("cuMemsetD8", other, 0, flushed))
    return Times(warm, cold)


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a copy within the GPU's memory: a limit for every kernel."""
    size = CACHES * _cache_bytes()
    with _allocated(size) as source, _allocated(size) as target:
        call("cuMemsetD8", source, 0, size)
        return 2 * size / (1e-6 * _median(lambda: call("cuMemcpyDtoD", target, source, size), 1))


def _median(start: Callable[[], object], batch: int, before: Callable[[], object] | None = None) -> float:
    """Microseconds of `start`, the median of `batch` at a time; `before` comes before each batch and does not count."""
    begin, end = (call("cuEventCreate", 0) for _ in range(2))
    times = []
    try:
        for _ in range(WARM_UP + REPEATS):
            if before:
                before()
            call("cuEventRecord", begin, 0)
            for _ in range(batch):
                start()
            call("cuEventRecord", end, 0)
            call("cuEventSynchronize", end)
            times.append(1000 * float(call("cuEventElapsedTime", begin, end)) / batch)
    finally:
        for event in (begin, end):
            with suppress(EngineError):
                call("cuEventDestroy", event)
    return statistics.median(times[WARM_UP:])


def _cache_bytes() -> int:
    return max(attribute("L2_CACHE_SIZE", device()[0]), 1 << 16)


@contextmanager
def _ready(
    folder: str,
    launch: Launch,
    inputs: Sequence[Array | None],
    outputs: Sequence[Output],
    image: Image | None,
    offset: int,
) -> Iterator[tuple[Callable[[], object], list[int]]]:
    """The function that launches the kernel, on arrays in the GPU's memory, and the addresses of the outputs."""
    function = _function(folder, launch.entry, image)
    with ExitStack() as held:
        given = [np.ascontiguousarray(array) for array in inputs if array is not None]
        pointers = [held.enter_context(_guarded(array.nbytes, offset)) for array in given]
        results = [held.enter_context(_guarded(_bytes(output), offset)) for output in outputs]
        for array, pointer in zip(given, pointers, strict=True):
            if array.nbytes:
                call("cuMemcpyHtoD", pointer, array.ctypes.data, array.nbytes)
        types = (ctypes.c_void_p,) * len(pointers) + (ctypes.c_int32,) * len(launch.scalars)
        parameters = ((*pointers, *launch.scalars, *results), types + (ctypes.c_void_p,) * len(results))
        grid = tuple(map(at_least_1, launch.grid))
        yield (
            lambda: call("cuLaunchKernel", function, *grid, *launch.block, launch.shared_bytes, 0, parameters, 0),
            results,
        )


def _bytes(output: Output) -> int:
    shape, dtype = output
    return math.prod(shape) * np.dtype(dtype).itemsize


@contextmanager
def _guarded(size: int, offset: int) -> Iterator[int]:
    """The address of `size` bytes of the GPU's memory, `offset` behind an aligned one; all, with guards, are poison."""
    with _allocated(size + offset + 2 * GUARD) as pointer:
        call("cuMemsetD8", pointer, POISON, size + offset + 2 * GUARD)
        yield pointer + GUARD + offset


def _read(pointer: int, size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes of the GPU's memory, and the guards around them."""
    block = np.empty(size + 2 * GUARD, np.uint8)
    call("cuMemcpyDtoH", block.ctypes.data, pointer - GUARD, block.nbytes)
    return block


@contextmanager
def _allocated(size: int) -> Iterator[int]:
    """The address of `size` bytes of the GPU's memory."""
    pointer = call("cuMemAlloc", size)
    try:
        yield int(pointer)
    except BaseException:
        with suppress(EngineError):  # after an error of a kernel every call fails
            call("cuMemFree", pointer)
        raise
    call("cuMemFree", pointer)


@cache
def _function(folder: str, entry: str, image: Image | None) -> Any:
    """The loaded kernel: by default the cubin for a GPU of the same generation, else PTX, which the driver compiles."""
    sm = kernel_sm()
    check_driver(sm)
    compiled = compile_kernel(folder, sm)
    data = compiled.cubin if (image or images(device()[1])[0]) == "cubin" else only(compiled.ptx, entry) + b"\0"
    return call("cuModuleGetFunction", call("cuModuleLoadData", data), entry.encode())
