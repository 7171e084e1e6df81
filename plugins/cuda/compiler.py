"""Compile an operator's `kernel.cu` with NVRTC, which needs no GPU, and report the kernels' resource usage.

A kernel is compiled once per GPU architecture to PTX, which a TensorRT engine embeds, and to a cubin, which GPUs of
that architecture run directly; both are kept in the user's cache directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from intaglio import extras
from intaglio.display.progress import step
from intaglio.errors import EngineError, MissingExtraError, one_line
from intaglio.plugins.cuda import cache as compiled_before
from intaglio.plugins.cuda.launching.geometry import PLUGINS
from intaglio.processes.threads import in_parallel

SMS = {75: "T4", 80: "A100", 90: "H100"}  # compute capability times ten: the GPU it stands for

# The PTX version that the kernels need on each: their matrix instructions, and the GPU itself. NVRTC writes its own
# version, which only the driver of the same CUDA release reads ("Unsupported .version"); these are read by the driver
# of CUDA 10.2, 11.0 and 11.8, and each later one. tests/plugins/cuda/test_assemblers.py proves that no
# instruction is newer.
PTX_VERSIONS = {75: (6, 5), 80: (7, 0), 90: (7, 8)}
Image = Literal["cubin", "ptx"]
OPTIONS = ("--std=c++17", "--ptxas-options=-v")


class Compiled(msgspec.Struct, frozen=True):
    """A `kernel.cu` compiled for one GPU; `log` is the assembler's, with each kernel's resource usage."""

    ptx: bytes
    cubin: bytes
    log: str


@dataclass(frozen=True)
class Resources:
    """The resource usage of one kernel: registers and local bytes per thread, shared bytes per block.

    Spilled bytes count registers that did not fit, stack bytes also arrays that are not in registers. Both are in
    global memory, so our kernels have none, but for a few bytes in two of GroupMatMul's, of levels.
    """

    registers: int
    spilled_bytes: int
    stack_bytes: int
    shared_bytes: int


def compile_kernel(folder: str, sm: int) -> Compiled:
    """Compile `kernel.cu` of a folder below `plugins`, or of any path, for compute capability `sm`, such as 75.

    Raises `EngineError` with the first compilation error, `MissingExtraError` without NVRTC.
    """
    nvrtc, version = _nvrtc()
    options = (f"--gpu-architecture=sm_{sm}", *OPTIONS)
    name = f"{Path(folder).name}-sm{sm}-{compiled_before.key(folder, options, version)}.nvrtc"

    def make() -> bytes:
        return msgspec.msgpack.encode(_compile(nvrtc, folder, options))

    try:
        compiled = msgspec.msgpack.decode(compiled_before.kept(name, make), type=Compiled)
    except msgspec.DecodeError:  # a damaged cache
        compiled = msgspec.msgpack.decode(make(), type=Compiled)
    return msgspec.structs.replace(compiled, ptx=_with_version(compiled.ptx, sm))


def compile_kernels(folders: Iterable[str], sm: int) -> None:
    """Compile the kernels of several folders at once, as `compile_kernel`, which then finds them in the cache.

    Each takes seconds the first time; NVRTC runs outside of Python's lock.
    """
    with step("compiling CUDA kernels"):
        in_parallel(lambda folder: compile_kernel(folder, sm), folders)


def newest_for(sm: int) -> int | None:
    """The newest compute capability of `SMS` whose kernels GPUs of `sm` run; None for GPUs that are too old."""
    return max((known for known in SMS if known <= sm), default=None)


def built_for(sm: int) -> int:
    """The newest compute capability that kernels are built for and that GPUs of `sm` run; raises `EngineError`."""
    newest = newest_for(sm)
    if newest is None:
        raise EngineError(f"no CUDA device that the kernels run on: got sm_{sm}, expected sm_{min(SMS)} or newer.")
    return newest


def images(sm: int) -> tuple[Image, ...]:
    """The forms of the kernels that a GPU of `sm` loads: a cubin only if there is one for its generation."""
    return ("cubin", "ptx") if built_for(sm) // 10 == sm // 10 else ("ptx",)


class Images(NamedTuple):
    """An operator's kernels for the driver: a cubin, empty if there is none for the GPU, and PTX, ended by a zero."""

    cubin: bytes
    ptx: bytes


def images_for(folder: str, sm: int) -> Images:
    """The kernels of a folder below `plugins` for GPUs of `sm`; raises as `compile_kernel`, and for GPUs too old."""
    compiled = compile_kernel(folder, built_for(sm))
    return Images(compiled.cubin if "cubin" in images(sm) else b"", compiled.ptx + b"\0")


def _with_version(ptx: bytes, sm: int) -> bytes:
    """PTX with the oldest version that `sm` allows, never a newer one than it has."""
    found = re.search(rb"^\.version (\d+)\.(\d+)$", ptx, re.MULTILINE)
    if found is None:
        raise EngineError("NVRTC's PTX states no version. Use NVRTC 12.8 or newer.")
    major, minor = min((int(found[1]), int(found[2])), PTX_VERSIONS.get(sm, PTX_VERSIONS[max(SMS)]))
    return ptx[: found.start()] + f".version {major}.{minor}".encode() + ptx[found.end() :]


def entry_points(folder: str) -> list[str]:
    """The names of an operator's kernels, in the order of its source."""
    source = (PLUGINS / folder / "kernel.cu").read_text()
    return re.findall(r'^extern "C" __global__ void __launch_bounds__\(.*?\)\s+(\w+)\(', source, re.MULTILINE)


def only(ptx: bytes, entry: str) -> bytes:
    """The PTX of a single kernel of the module, for an engine to embed."""
    head, *kernels = re.split(r"(?=^\.visible \.entry )", ptx.decode(), flags=re.MULTILINE)
    found = [kernel for kernel in kernels if kernel.startswith(f".visible .entry {entry}(")]
    if not found:
        raise EngineError(f"{entry}: the PTX has no such kernel. Compile the operator that it belongs to.")
    return (head + found[0]).encode()


def parameters(ptx: bytes, entry: str) -> list[str]:
    """The parameters of a kernel as PTX types: "u64" for a pointer, "u32" for a scalar."""
    signature = only(ptx, entry).decode().split(f".entry {entry}(")[1].split(")")[0]
    return re.findall(r"\.param \.(\w+)", signature)


def resources(folder: str, sm: int) -> dict[str, Resources]:
    """The resource usage of each kernel of an operator for compute capability `sm`, by the kernel's name."""
    log = compile_kernel(folder, sm).log
    used = {}
    for name, text in re.findall(
        r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", log, re.DOTALL
    ):
        stores, loads = _number(r"(\d+) bytes spill stores", text), _number(r"(\d+) bytes spill loads", text)
        used[name] = Resources(
            registers=_number(r"Used (\d+) registers", text),
            spilled_bytes=stores + loads,
            stack_bytes=_number(r"(\d+) bytes stack frame", text),
            # Absent where a kernel has none.
            shared_bytes=_number(r"(\d+) bytes smem", text) if " smem" in text else 0,
        )
    return used


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if not found:
        raise EngineError(
            f"NVRTC's log: no {pattern!r} in {one_line(ValueError(text), 200)!r}. Use NVRTC 12.8 or newer."
        )
    return int(found[1])


def nvrtc_version() -> tuple[int, int]:
    """The version of the NVRTC that compiles the kernels. Raises `MissingExtraError` without it."""
    return _nvrtc()[1]


@cache
def _nvrtc() -> tuple[Any, tuple[int, int]]:
    """The NVRTC bindings and the version of the library, which is a separate package and can be missing."""
    nvrtc = extras.load("cuda.bindings.nvrtc")
    try:
        result, major, minor = nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        raise MissingExtraError(
            f"NVRTC cannot be loaded ({one_line(error, 200)}). Install it with: pip install nvidia-cuda-nvrtc"
        ) from error
    _check(nvrtc, result, "nvrtcVersion")
    return nvrtc, (major, minor)


def _compile(nvrtc: Any, folder: str, options: tuple[str, ...]) -> Compiled:
    path = PLUGINS / folder / "kernel.cu"
    result, program = nvrtc.nvrtcCreateProgram(path.read_bytes(), str(path).encode(), 0, [], [])
    _check(nvrtc, result, "nvrtcCreateProgram")
    try:
        options = (*options, f"--include-path={PLUGINS}")  # no part of the cache's key, which is the same everywhere
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0 \n").decode()
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise EngineError(f"{options[0]}: {_first_error(log) or result.name}")
        return Compiled(_read(nvrtc, program, "PTX").rstrip(b"\0"), _read(nvrtc, program, "CUBIN"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(nvrtc: Any, program: Any, what: str) -> bytes:
    result, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _check(nvrtc, result, f"nvrtcGet{what}Size")
    data = bytes(size)
    (result,) = getattr(nvrtc, f"nvrtcGet{what}")(program, data)
    _check(nvrtc, result, f"nvrtcGet{what}")
    return data


def _first_error(log: str) -> str:
    return next((" ".join(line.split()) for line in log.splitlines() if "error" in line), "")


def _check(nvrtc: Any, result: Any, call: str) -> None:
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise EngineError(f"{call} failed: {result.name}. Reinstall nvidia-cuda-nvrtc and cuda-python.")
