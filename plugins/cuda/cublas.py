"""Matrix products of cuBLAS, the peer of our kernels' products; used by `gpu-check`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from intaglio.errors import EngineError, MissingExtraError, one_line
from intaglio.extras import load
from intaglio.plugins.cuda.driver import call
from intaglio.plugins.cuda.launcher import Work, allocated, copies_of, replay

TRANSPOSED, AS_IT_IS = 1, 0  # cublasOperation_t
DEFAULT = -1  # cublasGemmAlgo_t
WORKSPACE = 32 << 20  # bytes; what NVIDIA advises for H100
MULTIPLE = 4  # of every length of an int8 product


class CublasError(EngineError):
    """A function of cuBLAS failed."""


class _Kind(NamedTuple):
    """A product's `cudaDataType_t` and bytes of inputs and output, `cublasComputeType_t`, and the type of 1 and 0."""

    given: int
    given_bytes: int
    made: int
    made_bytes: int
    compute: int
    scale: Any


KINDS = {
    "int8": _Kind(3, 1, 10, 4, 72, ctypes.c_int32),  # CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I
    "float16": _Kind(2, 2, 2, 2, 68, ctypes.c_float),  # CUDA_R_16F, CUBLAS_COMPUTE_32F
}


def product_time(dtype: str, rows: int, depth: int, channels: int) -> float:
    """Microseconds in which cuBLAS multiplies x [rows, depth] by w [channels, depth], none of them in the L2 cache.

    `dtype`: a key of `KINDS`. int8 gives int32, and rows are filled up to a multiple of 4. Raises `MissingExtraError`
    without cuBLAS, `CublasError` for its errors, `EngineError` for the driver's.
    """
    kind = KINDS[dtype]
    if dtype == "int8":
        rows = -(-rows // MULTIPLE) * MULTIPLE
    sizes = (rows * depth * kind.given_bytes, channels * depth * kind.given_bytes, rows * channels * kind.made_bytes)
    copies = copies_of(sum(sizes))
    one, zero = (ctypes.byref(kind.scale(value)) for value in (1, 0))
    with (
        _handle() as (library, handle),
        allocated(copies * sizes[0]) as xs,
        allocated(copies * sizes[1]) as ws,
        allocated(copies * sizes[2]) as ys,
    ):
        for base, size in ((xs, sizes[0]), (ws, sizes[1])):
            call("cuMemsetD8", base, 0x11, copies * size)  # 17, or 0.0006

        def product(number: int) -> Work:
            x, w, y = (ctypes.c_void_p(base + number * size) for base, size in zip((xs, ws, ys), sizes, strict=True))

            def start(stream: Any) -> None:
                _check(library, "cublasSetStream_v2", handle, ctypes.c_void_p(int(stream)))
                _check(
                    library, "cublasGemmEx", handle, TRANSPOSED, AS_IT_IS, channels, rows, depth, one,
                    w, kind.given, depth, x, kind.given, depth, zero,
                    y, kind.made, channels, kind.compute, DEFAULT,
                )  # fmt: skip

            return start

        return replay([product(number) for number in range(copies)])


@contextmanager
def _handle() -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
    """cuBLAS, and a handle with a workspace."""
    try:
        path = load("cuda.pathfinder").load_nvidia_dynamic_lib("cublas").abs_path
        library = ctypes.CDLL(path)
    except (RuntimeError, OSError) as error:
        raise MissingExtraError(
            f"cuBLAS cannot be loaded: {one_line(error, 200)}. Install it with: pip install nvidia-cublas"
        ) from error
    handle = ctypes.c_void_p()
    _check(library, "cublasCreate_v2", ctypes.byref(handle))
    try:
        with allocated(WORKSPACE) as workspace:
            _check(library, "cublasSetWorkspace_v2", handle, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE))
            yield library, handle
    finally:
        library.cublasDestroy_v2(handle)


def _check(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    status = getattr(library, name)(*arguments)
    if status:
        raise CublasError(f"{name} failed with status {status}.")
