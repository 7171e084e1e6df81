"""Run an operator's CUDA kernel on the CPU, for tests without a GPU: the same `kernel.cu`, built by g++.

`cuda_emulation.h` documents what it emulates and checks. `__CUDA_ARCH__` selects the matrix unit's shape and the
asynchronous copies, as on the GPU itself.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError, MissingExtraError, storage_errors
from intaglio.plugins.cuda import cache as compiled_before
from intaglio.plugins.cuda.compiler import entry_points
from intaglio.plugins.cuda.launching.geometry import PLUGINS, Launch, at_least_1
from intaglio.processes.temporary import scratch_directory

Array = npt.NDArray[np.generic]

CHECKS = "-fsanitize=bounds,alignment,signed-integer-overflow,shift-exponent,integer-divide-by-zero,bool"
FLAGS = (
    "-std=c++17",
    "-O1",  # compiling takes most of the time
    "-g0",
    "-fPIC",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror",
)
IGNORED = ("-Wno-unknown-pragmas", "-Wno-clobbered")
LIMITS = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}
THREADS = 1024  # in a block
HEADERS = Path(__file__).parent
SHARED_BYTES = 48 << 10  # of a block, without asking the driver for more
POISON = 0xA5  # an uninitialised byte, as in cuda_emulation.h

_running = Lock()  # the emulated GPU's registers are globals of the library


def emulate(
    folder: str,
    launch: Launch,
    inputs: Sequence[Array | None],
    outputs: Sequence[tuple[Sequence[int], npt.DTypeLike]],
    sm: int = 80,
    seed: int = 0,
    offset: int = 0,
) -> list[Array]:
    """Run a kernel of a folder below `plugins`, or of any path, as compute capability `sm`.

    Returns the outputs, by shape and dtype; bytes that were not written are POISON. `seed` other than 0 shuffles the
    order of blocks, warps and lanes. Arrays begin `offset` bytes behind an aligned address, as parts of others do.
    Raises `EngineError` for a launch that a GPU would reject, and for any error that the emulation finds.
    An empty grid has one block, as when TensorRT launches it.
    """
    _check_launch(launch)
    library = _library(folder, sm)
    with _running, _device_arrays(library, launch.entry, offset) as place:
        pointers = [place(np.ascontiguousarray(array)) for array in inputs if array is not None]
        made = [np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, POISON, np.uint8) for shape, dtype in outputs]
        made_pointers = [place(array) for array in made]
        _run(library, launch, pointers, made_pointers, seed)
        for array, pointer in zip(made, made_pointers, strict=True):
            ctypes.memmove(array.ctypes.data, pointer, array.nbytes)
    return [array.view(dtype).reshape(shape) for array, (shape, dtype) in zip(made, outputs, strict=True)]


def _check_launch(launch: Launch) -> None:
    for what, limits in LIMITS.items():
        lengths = getattr(launch, what)
        if any(not 0 <= length <= limit for length, limit in zip(lengths, limits, strict=True)):
            raise EngineError(f"{launch.entry}: {what} {lengths}, expected at most {limits}. Cut the batch.")
    if np.prod(launch.block) > THREADS or launch.shared_bytes > SHARED_BYTES:
        raise EngineError(
            f"{launch.entry}: {np.prod(launch.block)} threads and {launch.shared_bytes} bytes of dynamic shared "
            f"memory, expected at most {THREADS} and {SHARED_BYTES}. Take smaller blocks."
        )


@contextmanager
def _device_arrays(library: ctypes.CDLL, entry: str, offset: int) -> Iterator[_Place]:
    """Memory of the emulated GPU while the block runs; writes outside of an array are an error at its end."""
    place = _Place(library, offset)
    try:
        yield place
    except EngineError as error:
        raise EngineError(place.explain(str(error))) from None
    finally:
        damaged = place.release()
    if damaged:
        raise EngineError(f"{entry}: writes outside of {', '.join(damaged)}. Guard the tails.")


class _Place:
    """Copies arrays to memory of the emulated GPU and returns their addresses."""

    def __init__(self, library: ctypes.CDLL, offset: int) -> None:
        self.library, self.offset = library, offset
        self.arrays: list[tuple[int, int, str]] = []

    def __call__(self, array: Array) -> int:
        address = self.library.emulation_allocate(array.nbytes + self.offset)
        if not address:
            raise EngineError(f"no memory for an array of {array.nbytes} bytes. Take smaller arrays.")
        ctypes.memmove(address + self.offset, array.ctypes.data, array.nbytes)
        name = f"array {len(self.arrays)} ({array.nbytes} bytes)"
        self.arrays.append((address, array.nbytes + self.offset, name))
        return int(address) + self.offset

    def explain(self, message: str) -> str:
        """Rewrite a faulting address as an offset to the nearest array."""
        found = re.search(r"touches the address (0x[0-9a-f]+)", message)
        if not found or not self.arrays:
            return message
        fault = int(found[1], 16)
        address, _, name = min(self.arrays, key=lambda one: max(one[0] - fault, fault - one[0] - one[1]))
        return message.replace(found[0], f"touches byte {fault - address} of {name}") + ". Guard the tails."

    def release(self) -> list[str]:
        """Free all memory; return the names of the arrays with writes outside of them."""
        return [name for address, size, name in self.arrays if not self.library.emulation_release(address, size)]


def _run(library: ctypes.CDLL, launch: Launch, inputs: list[int], outputs: list[int], seed: int) -> None:
    values: list[ctypes.c_void_p | ctypes.c_int32] = [
        *map(ctypes.c_void_p, inputs),
        *map(ctypes.c_int32, launch.scalars),
        *map(ctypes.c_void_p, outputs),
    ]
    arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    message = ctypes.create_string_buffer(512)
    grid, block = ((ctypes.c_uint * 3)(*lengths) for lengths in (map(at_least_1, launch.grid), launch.block))
    failed = library.emulation_run(
        launch.entry.encode(),
        grid,
        block,
        ctypes.c_size_t(launch.shared_bytes),
        arguments,
        len(values),
        ctypes.c_uint(seed),
        message,
        ctypes.c_size_t(len(message)),
    )
    if failed:
        raise EngineError(f"{launch.entry}: {message.value.decode()}")


@cache
def _library(folder: str, sm: int) -> ctypes.CDLL:
    """The operator's kernels as a library for the CPU, built on first use."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise MissingExtraError("g++ is not installed: the emulation of CUDA needs it. Install it, or set CXX.")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    headers = [path.read_bytes() for path in sorted(HEADERS.glob("*.h"))]
    key = compiled_before.key(folder, FLAGS, IGNORED, CHECKS, version, headers)
    name = f"{Path(folder).name}-sm{sm}-{key}.so"
    data = compiled_before.kept(name, lambda: _build(compiler, folder, sm))
    path = compiled_before.location(name)
    library = ctypes.CDLL(str(path)) if path.exists() else _load(data)
    library.emulation_allocate.argtypes = [ctypes.c_size_t]
    library.emulation_allocate.restype = ctypes.c_void_p
    library.emulation_release.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.emulation_release.restype = ctypes.c_bool
    return library


def _load(data: bytes) -> ctypes.CDLL:
    """Load a library that could not be stored in the cache."""
    with scratch_directory("emulator") as directory:
        path = directory / "kernel.so"
        path.write_bytes(data)
        return ctypes.CDLL(str(path))


def _build(compiler: str, folder: str, sm: int) -> bytes:
    kernels = "".join(f"EMULATED_KERNEL({name}),\n" for name in entry_points(folder))
    source = (
        '#include "cuda_emulation.h"\n'
        f'#include "{folder}/kernel.cu"\n'
        f"const emulation::Kernel emulation::KERNELS[] = {{\n{kernels}{{nullptr, 0, nullptr}}}};\n"
    )
    with scratch_directory("emulator") as directory, storage_errors(directory):
        unit, obj, library = (directory / name for name in ("kernel.cpp", "kernel.o", "kernel.so"))
        unit.write_text(source)
        options = [
            *FLAGS,
            *IGNORED,
            CHECKS,
            f"-D__CUDA_ARCH__={sm}0",
            f"-I{PLUGINS / folder}",
            f"-I{PLUGINS}",
            f"-I{HEADERS}",
        ]
        _call([compiler, *options, "-c", str(unit), "-o", str(obj)], folder)
        # Linked without -fsanitize: sanitizer.h has the handlers that libubsan would bring.
        _call([compiler, "-shared", "-Wl,-z,defs", str(obj), "-o", str(library)], folder)
        return library.read_bytes()


def _call(command: list[str], folder: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        raise EngineError(f"{PLUGINS / folder / 'kernel.cu'} by {command[0]}: {(errors or ['failed'])[0]}")
