"""What `gpu-check` reports, and what its child processes answer."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

# How a kernel is run: loaded by the driver as one of its images; by a node of ONNX Runtime's CUDA provider; in an
# engine of TensorRT with the plugins in Python, as `build` makes it, or with the plugin of our library, as trtexec
# does; in one of TensorRT-RTX; or by the driver under NVIDIA's compute-sanitizer, which checks each access to memory.
Form = Literal["cubin", "ptx", "onnxruntime", "tensorrt", "tensorrt-library", "tensorrt-rtx", "sanitizer"]
TIMED: Final = "ptx"  # the form in an engine

Kind = Literal[
    "wrong bits",
    "load failed",
    "launch failed",
    "illegal address",
    "memory error",
    "timeout",
    "crashed",
    "missing library",
    "not supported",
    "error",
]


class Machine(msgspec.Struct):
    """The first GPU, and the versions of what compiles, launches and runs the kernels; None for what is missing."""

    gpu: str
    sm: int  # compute capability times ten
    memory_bytes: int
    multiprocessors: int
    cache_bytes: int  # the L2 cache
    ecc: bool
    clock_mhz: float | None  # the highest ones; None if the driver does not tell
    memory_clock_mhz: float | None
    driver_cuda: str  # the CUDA version that the driver supports, such as "13.0"
    versions: dict[str, str | None]  # library -> version


class Failure(msgspec.Struct):
    """What went wrong in a case; an empty case is the start of the process."""

    kind: Kind
    case: str
    message: str
    log: list[str] = []  # the last messages of TensorRT; of the first failure of a part or a bundle alone


class Speed(msgspec.Struct):
    """The time of a kernel in its case with the most bytes: of its inputs and outputs, each moved once."""

    kernel: str
    case: str
    bytes: int
    warm_us: float  # medians: with the arrays of the launch before in the L2 cache, and without
    cold_us: float
    gigabytes_per_second: float  # bytes / cold_us
    of_copy: float  # the time of a copy within the GPU's memory that moves as many bytes / cold_us
    of_cublas: float | None  # the time of cuBLAS for the same product, of int8 or dense float16 weights / cold_us


class Ran(msgspec.Struct):
    """A case that a child process ran: its kernel, and what was wrong."""

    kernel: str
    failure: Failure | None


class Answer(msgspec.Struct):
    """An answer of a child process: a value, or why there is none."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


class KernelCheck(msgspec.Struct):
    """All cases of an operator's kernels, run in one form, in one process."""

    operator: str  # its folder
    image: Form
    passed: bool
    cases: int  # that ran
    kernels: list[str]  # that ran
    failures: list[Failure]
    speeds: list[Speed]  # of the form `TIMED` alone
    seconds: float


class BundleComparison(msgspec.Struct):
    """A bundle on a target beside the same on the CPU; `beyond`: outputs and measures that exceed their bounds."""

    passed: bool
    outputs: int
    beyond: list[str]


class Throughput(msgspec.Struct):
    """How many of `unit`, texts or tokens, in a second: on a target, and on the CPU."""

    unit: str
    on_target: float
    on_cpu: float


class BundleCheck(msgspec.Struct):
    """A bundle on a target of this machine's GPU; the last two are None where something failed before."""

    bundle: str  # its folder
    target: str
    passed: bool | None  # None: the target does not support it
    failure: Failure | None  # or why it is not supported
    compared: BundleComparison | None
    throughput: Throughput | None
    seconds: float


class GpuCheck(msgspec.Struct):
    """The result of `gpu-check`."""

    passed: bool
    machine: Machine
    kernels: list[KernelCheck]
    seconds: float
    bundles: list[BundleCheck] = []
