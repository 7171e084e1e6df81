"""A stand-in for NVIDIA's driver under the library's CUDA kernels: they run on the emulator.

ONNX Runtime's CPU provider stands in for its CUDA provider. The library under test is the one that users have, with
another provider's name in it. It opens `libcuda.so.1`, which is a library of this name that hands every launch to
`EmulatedDriver`.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import cuda_emulator
import pytest
from cuda_ledger import gpu
from device_meter import Ledger

from intaglio.plugins import ort as kernels
from intaglio.plugins.cuda import compiler
from intaglio.plugins.cuda.compiler import Compiled, Images, entry_points
from intaglio.plugins.cuda.launching.launches import operators

IMAGES = Images(b"\x7fELF of the emulator", b".version 7.0\0")  # as the driver recognises them
GPU, HOST = b"CUDAExecutionProvider\0", b"CPUExecutionProvider\0\0"

SOURCE = r"""
#include <string.h>
typedef int Launch(const char* kernel, const unsigned* sizes, void** arguments);
static Launch* launch;
static const void* context = &launch;
void stand_in(Launch* given) { launch = given; }
void set_context(const void* given) { context = given; }
int cuGetErrorName(int status, const char** name) {
    *name = status == 700   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : status == 200 ? "CUDA_ERROR_INVALID_IMAGE"
                            : "CUDA_ERROR_NO_BINARY_FOR_GPU";
    return 0;
}
int cuCtxGetCurrent(const void** current) { *current = context; return 0; }
int cuModuleLoadData(const void** module, const void* image) {
    *module = image;
    if (*(const char*)image == 0) return 200;
    return memcmp(image, "\x7f" "ELF", 4) && memcmp(image, ".version", 8) ? 209 : 0;
}
int cuModuleGetFunction(const void** kernel, void* module, const char* name) {
    *kernel = strdup(name);
    return 0;
}
int cuLaunchKernel(const char* kernel, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared, void* stream, void** arguments, void** extra) {
    const unsigned sizes[] = {x, y, z, block_x, block_y, block_z, shared};
    return stream || extra ? 1 : launch(kernel, sizes, arguments);
}
"""


class EmulatedDriver:
    """The driver of an emulated GPU of compute capability `sm`.

    `launches`: the names of the kernels that ran; `sizes`: of grid and block of each. `dry`: none of them runs;
    `refuses`: all of them fail.
    """

    def __init__(self, sm: int = 80) -> None:
        self.sm = sm
        self.launches: list[str] = []
        self.sizes: list[tuple[int, ...]] = []
        self.dry = self.refuses = False
        self.error = ""  # of the last launch
        self.library = _driver_library()
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p)
        self._callback = kind(self._launch)
        self.library.stand_in(self._callback)  # in the place of an earlier one

    def _launch(self, kernel: bytes, sizes: ctypes._Pointer[ctypes.c_uint], arguments: int) -> int:
        entry = kernel.decode()
        self.launches.append(entry)
        self.sizes.append(tuple(sizes[:6]))
        if self.dry or self.refuses:
            return 700 if self.refuses else 0
        folder = next(folder for folder in operators() if entry in entry_points(folder))
        library = cuda_emulator._library(folder, self.sm)
        message = ctypes.create_string_buffer(512)
        with cuda_emulator._running:
            failed = library.emulation_run(
                kernel,
                (ctypes.c_uint * 3)(*sizes[0:3]),
                (ctypes.c_uint * 3)(*sizes[3:6]),
                ctypes.c_size_t(sizes[6]),
                ctypes.c_void_p(arguments),
                library.emulation_parameters(kernel),
                ctypes.c_uint(0),
                message,
                ctypes.c_size_t(len(message)),
            )
        self.error = message.value.decode() if failed else ""
        return 700 if failed else 0


@cache
def _driver_library() -> ctypes.CDLL:
    """The library `libcuda.so.1`: one for the process, as whoever opens this name gets the first that was loaded."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    with TemporaryDirectory() as folder:
        path = Path(folder, "libcuda.so.1")
        path.with_suffix(".c").write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(path)]
        subprocess.run([*command, str(path.with_suffix(".c"))], check=True)
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def emulated_gpu(folder: Path) -> Iterator[tuple[Ledger, EmulatedDriver]]:
    """A machine with an emulated A100, and ONNX Runtime for GPUs; its files are in `folder`."""
    driver = EmulatedDriver()
    with gpu() as ledger, pytest.MonkeyPatch.context() as patch:
        path = emulated_library(folder)
        patch.setattr(kernels, "library", lambda: path)
        patch.setattr(compiler, "compile_kernel", lambda *_: Compiled(IMAGES.ptx[:-1], IMAGES.cubin, ""))
        yield ledger, driver


def emulated_library(folder: Path) -> Path:
    """A copy of the library whose CUDA kernels are for ONNX Runtime's CPU provider."""
    original = kernels.library()
    assert original is not None
    content = original.read_bytes()
    assert content.count(GPU) == 1
    path = folder / "_kernels.so"
    path.write_bytes(content.replace(GPU, HOST))
    return path
