"""Launch a CUDA kernel on a GPU: on memory of an engine, or from arrays to arrays and measured, for `gpu-check`.

Engines launch the kernels of their nodes themselves.
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

from intaglio.errors import EngineError, one_line
from intaglio.extras import load
from intaglio.plugins.cuda.compiler import Image, built_for, compile_kernel, images, only
from intaglio.plugins.cuda.driver import attribute, call, check_driver
from intaglio.plugins.cuda.launching.geometry import Launch, at_least_1

Array = npt.NDArray[np.generic]
Output = tuple[Sequence[int], npt.DTypeLike]

ALIGNMENT = 256  # bytes; that of what the driver allocates
GUARD = ALIGNMENT  # bytes around each array; a write to them would else go unnoticed
POISON = 0xA5  # their value, and that of every output before the kernel runs: memory may still hold the right result
WARM_UP, REPEATS = 3, 11
BATCH = 20  # launches between two events, as one may take less time than the events' resolution
CACHES = 2  # times the L2 cache is what all copies of a launch's arrays take
MOST_COPIES = 512  # of small arrays, whose time is not that of moving them


class OverrunError(EngineError):
    """A kernel wrote outside of its outputs."""


Work = Callable[[Any], object]  # enqueues something on a stream


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
    load("cuda.bindings.driver")
    try:
        call("cuInit", 0)
    except RuntimeError as error:  # the driver's library is not there
        raise EngineError(
            f"no CUDA device: {one_line(error, 200).rstrip('.')}. Run this on a machine with one."
        ) from error
    first = call("cuDeviceGet", 0)
    sm = 10 * attribute("COMPUTE_CAPABILITY_MAJOR", first) + attribute("COMPUTE_CAPABILITY_MINOR", first)
    call("cuCtxSetCurrent", _context())
    return first, sm


@cache
def _context() -> Any:
    """The primary context of the first GPU, after cuInit."""
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0))


def kernel_sm() -> int:
    """The compute capability that the first GPU's kernels are built for. Raises `EngineError` if it is too old."""
    return built_for(device()[1])


def prepare(folder: str) -> None:
    """Compile the kernels of `plugins/<folder>` for the first GPU. Raises as `run`, and without NVRTC."""
    sm = kernel_sm()
    check_driver(sm)
    compile_kernel(folder, sm)


def enqueue(folder: str, launch: Launch, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
    """Launch a kernel of `plugins/<folder>` on a stream of the first GPU, on arrays at these addresses."""
    call("cuCtxPushCurrent", _context())  # of this thread, which may have none, or another
    try:
        function = _function(folder, launch.entry, None)
        call("cuLaunchKernel", function, *_launched(launch), stream, _parameters(launch, inputs, outputs), 0)
    finally:
        call("cuCtxPopCurrent")


def run(
    folder: str,
    launch: Launch,
    inputs: Sequence[Array | None],
    outputs: Sequence[Output],
    image: Image | None = None,
    offset: int = 0,
    guard: int = GUARD,
) -> list[Array]:
    """Run a kernel of the operator in `plugins/<folder>` on the first GPU; return the outputs, by shape and dtype.

    `launch` is for `kernel_sm()`. `image`: the form in which the kernel is loaded; PTX is that in a TensorRT engine.
    Arrays begin `offset` bytes behind an aligned address, with `guard` bytes around them; with none, a tool that checks
    the memory sees where they end. An empty grid has one block, as when TensorRT launches it.
    Raises `EngineError` without a supported GPU, and for any error of the driver, `OverrunError` for a write around an
    output.
    """
    with _ready(folder, launch, inputs, outputs, image, offset, guard) as ((start, results),):
        start(0)
        call("cuCtxSynchronize")
        blocks = [_read(pointer, _bytes(output), guard) for pointer, output in zip(results, outputs, strict=True)]
    for number, (before, _, behind) in enumerate(blocks):
        if (np.concatenate([before, behind]) != POISON).any():
            raise OverrunError(f"{launch.entry}: writes outside of output {number}. Guard the tails.")
    return [
        block.view(dtype).reshape(tuple(shape)) for (_, block, _), (shape, dtype) in zip(blocks, outputs, strict=True)
    ]


def measure(
    folder: str,
    launch: Launch,
    inputs: Sequence[Array | None],
    outputs: Sequence[Output],
    image: Image | None = None,
) -> Times:
    """Measure the time of a launch in a CUDA graph, by events of the GPU; parameters and errors as in `run`."""
    size = sum(array.nbytes for array in inputs if array is not None) + sum(map(_bytes, outputs))
    with _ready(folder, launch, inputs, outputs, image, 0, GUARD, copies_of(size)) as ready:
        starts = [start for start, _ in ready]
        return Times(replay(starts[:1] * BATCH), replay(starts))


def copy_time(size: int) -> float:
    """Microseconds of a copy in the GPU's memory that reads and writes `size` bytes together: a limit for kernels."""
    half, copies = max(size // 2, 1), copies_of(size)
    with allocated(copies * half) as source, allocated(copies * half) as target:
        call("cuMemsetD8", source, 0, copies * half)

        def copy(start: int) -> Work:
            return lambda stream: call("cuMemcpyDtoDAsync", target + start, source + start, half, stream)

        return replay([copy(number * half) for number in range(copies)])


def copies_of(size: int) -> int:
    """How many copies of arrays of `size` bytes to use in turn, so that none of them is in the L2 cache when it is."""
    return min(math.ceil(CACHES * _cache_bytes() / max(size, 1)) + 1, MOST_COPIES)


def replay(works: Sequence[Work]) -> float:
    """Microseconds of one of `works`, the median, in a CUDA graph of all: the processor need not start one by one.

    Raises `EngineError` for any error of the driver.
    """
    with ExitStack() as held:

        def keep(made: Any, release: str) -> Any:
            held.callback(_quietly, release, made)
            return made

        stream = keep(call("cuStreamCreate", 1), "cuStreamDestroy")  # the default stream cannot be captured
        begin, end = (keep(call("cuEventCreate", 0), "cuEventDestroy") for _ in range(2))
        works[0](stream)  # loads the kernel, which a capture need not allow
        call("cuStreamSynchronize", stream)
        call("cuStreamBeginCapture", stream, load("cuda.bindings.driver").CUstreamCaptureMode(0))
        for work in works:
            work(stream)
        graph = keep(call("cuStreamEndCapture", stream), "cuGraphDestroy")
        runs = keep(call("cuGraphInstantiate", graph, 0), "cuGraphExecDestroy")
        times = []
        for _ in range(WARM_UP + REPEATS):
            call("cuEventRecord", begin, stream)
            call("cuGraphLaunch", runs, stream)
            call("cuEventRecord", end, stream)
            call("cuEventSynchronize", end)
            times.append(1000 * float(call("cuEventElapsedTime", begin, end)) / len(works))
        return statistics.median(times[WARM_UP:])


def _quietly(name: str, made: Any) -> None:
    """Release something of the driver; after an error of a kernel every call fails."""
    with suppress(EngineError):
        call(name, made)


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
    guard: int,
    copies: int = 1,
) -> Iterator[list[tuple[Work, list[int]]]]:
    """For each copy of the arrays in the GPU's memory, what launches the kernel on it, and the outputs' addresses."""
    function = _function(folder, launch.entry, image)
    with ExitStack() as held:
        given = [np.ascontiguousarray(array) for array in inputs if array is not None]
        pointers = [held.enter_context(_guarded(array.nbytes, offset, guard, copies)) for array in given]
        results = [held.enter_context(_guarded(_bytes(output), offset, guard, copies)) for output in outputs]
        for array, places in zip(given, pointers, strict=True):
            for place in places if array.nbytes else ():
                call("cuMemcpyHtoD", place, array.ctypes.data, array.nbytes)

        def start(number: int) -> Work:
            before, behind = ([places[number] for places in group] for group in (pointers, results))
            parameters, sizes = _parameters(launch, before, behind), _launched(launch)
            return lambda stream: call("cuLaunchKernel", function, *sizes, stream, parameters, 0)

        yield [(start(number), [places[number] for places in results]) for number in range(copies)]


def _launched(launch: Launch) -> tuple[int, ...]:
    """Grid, block and shared bytes of a launch. An empty grid has one block, as when TensorRT launches it."""
    return (*map(at_least_1, launch.grid), *launch.block, launch.shared_bytes)


def _parameters(launch: Launch, inputs: Sequence[int], outputs: Sequence[int]) -> tuple[Any, ...]:
    """The parameters of a kernel as cuda-python takes them: their values, and their types."""
    pointers, scalars = ctypes.c_void_p, (ctypes.c_int32,) * len(launch.scalars)
    return (*inputs, *launch.scalars, *outputs), (*(pointers,) * len(inputs), *scalars, *(pointers,) * len(outputs))


def _bytes(output: Output) -> int:
    shape, dtype = output
    return math.prod(shape) * np.dtype(dtype).itemsize


@contextmanager
def _guarded(size: int, offset: int, guard: int, copies: int) -> Iterator[list[int]]:
    """The addresses of `copies` of `size` bytes, each `offset` behind an aligned one; all, with guards, are poison."""
    one = size + offset + 2 * guard
    stride = ALIGNMENT * math.ceil(one / ALIGNMENT)
    whole = max((copies - 1) * stride + one, 1)
    with allocated(whole) as pointer:
        call("cuMemsetD8", pointer, POISON, whole)
        yield [pointer + number * stride + guard + offset for number in range(copies)]


def _read(pointer: int, size: int, guard: int) -> list[npt.NDArray[np.uint8]]:
    """The guard before `size` bytes of the GPU's memory, these bytes, and the guard behind them."""
    block = np.empty(size + 2 * guard, np.uint8)
    if block.size:
        call("cuMemcpyDtoH", block.ctypes.data, pointer - guard, block.nbytes)
    return np.split(block, [guard, guard + size])


@contextmanager
def allocated(size: int) -> Iterator[int]:
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
