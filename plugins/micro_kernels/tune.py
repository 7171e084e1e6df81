"""Measure the micro-kernels on this machine, as ONNX Runtime runs them, and keep the fastest.

Every case is a model of one node, for which each variant is selected in turn; times are the thread's CPU times, and the
minimum counts, so that other work on the machine has little effect. Variants are compared with weights from the caches.
Then the best is run with weights from memory, to see with which group sizes prefetching far ahead is faster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from intaglio import extras
from intaglio.display.progress import track
from intaglio.errors import UsageError
from intaglio.plugins import ort
from intaglio.plugins.group_matmul.signature import LARGEST_GROUP, smallest_group
from intaglio.plugins.micro_kernels import tables
from intaglio.plugins.micro_kernels.instruction_sets import INSTRUCTION_SETS
from intaglio.plugins.micro_kernels.micro_kernel import GROUP_LEVELS, MicroKernel, MicroKernelCase, reads_one_stream
from intaglio.plugins.native.memory_bandwidth import Memory
from intaglio.plugins.registry import DOMAIN, OPS

SHAPES = ((4096, 1024), (2048, 256), (11008, 512))  # K, N: from L3 and L2, and a long K
QUICK_SHAPES = ((2048, 512),)
ROUNDS, QUICK_ROUNDS = 12, 3
GROUP_SIZE = 128
GROUP_SIZES = (16, 32, 64, 128)  # with which prefetching is tried: the smaller, the more work for each byte
FROM_MEMORY = 4096, 1 << 24  # K and bytes of a weight from memory, beside whose time a call's own is little
QUICK_FROM_MEMORY = 4096, 1 << 21
WORTH_PREFETCHING = 0.95  # of the time without
WORTH = 0.99  # of the default's time: a variant must be faster than this, a smaller gain is noise

Arrays = dict[str, npt.NDArray[Any]]


class TunedCase(msgspec.Struct):
    """A case's default and its fastest micro-kernel; speeds in 10^9 products a second, one thread."""

    operator: str
    bits: int
    planes: int
    rows: int
    default: tuple[int, int]  # m_u, t_u
    best: tuple[int, int]
    default_speed: float
    best_speed: float
    prefetch: int  # the largest group size with which weights are prefetched far ahead; LutMatMul: not 0 if they are


class Tuning(msgspec.Struct):
    """The measurements, and the path of the table."""

    cpu: str
    instruction_set: str
    table: str  # path
    cases: list[TunedCase]


def tune(quick: bool = False) -> Tuning:
    """Measure all variants on this machine, store the table of the fastest, and select them.

    `quick` measures one small shape a few times. Raises `UsageError` without CPU kernels, `StorageError` if the table
    cannot be written.
    """
    extras.load("onnxruntime")
    instruction_set, cpu = ort.micro_kernel_set(), ort.cpu()
    if instruction_set is None or cpu is None:
        raise UsageError("tune: no compiled CPU kernels. Install g++ or clang++, then install intaglio again.")
    chosen, measured = tables.defaults(instruction_set), []
    memory = Memory(1 << 27 if quick else 1 << 29)  # read to drive weights out of the caches
    try:
        for case, default in track(list(chosen.items()), "measuring micro-kernels", len(chosen)):
            times = _measure(case, instruction_set, quick)
            best = min(times, key=lambda kernel: times[kernel])
            if times[best] > WORTH * times[default]:
                best = default
            if reads_one_stream(best, INSTRUCTION_SETS[instruction_set]):
                best = best._replace(prefetch=_prefetch(best, memory, quick))
            chosen[case] = best
            measured.append(_tuned(case, default, best, times, quick))
        path = tables.store(cpu, instruction_set, chosen)
    finally:
        ort.select_kernels()
    return Tuning(cpu, instruction_set, str(path), measured)


def _prefetch(kernel: MicroKernel, memory: Memory, quick: bool) -> int:
    """The largest group size with which prefetching far ahead makes `kernel` faster: any, if the last one tried does.

    Medians count: the processor's own prefetching has luck at times, which the shortest time would show.
    """
    any_size = quick or kernel.case.operator == "lut_matmul"
    largest = 0
    for size in GROUP_SIZES[-1:] if any_size else GROUP_SIZES:
        if size % smallest_group(kernel.case.bits):
            continue
        depth, weight_bytes = QUICK_FROM_MEMORY if quick else FROM_MEMORY
        session, x = _session(kernel.case, depth, weight_bytes * 8 // (depth * kernel.case.bits), size)
        times: dict[int, list[float]] = {0: [], LARGEST_GROUP: []}
        for _ in range(QUICK_ROUNDS if quick else ROUNDS):
            for prefetch, each in times.items():
                ort.select_kernel(kernel._replace(prefetch=prefetch))
                memory.read(1)
                each.append(next(_times(session, x)))
        if median(times[LARGEST_GROUP]) < WORTH_PREFETCHING * median(times[0]):
            largest = LARGEST_GROUP if size == GROUP_SIZES[-1] else size
    return largest


def _tuned(
    case: MicroKernelCase, default: MicroKernel, best: MicroKernel, times: dict[MicroKernel, float], quick: bool
) -> TunedCase:
    best, prefetch = best.emitted, best.prefetch
    products = case.rows * sum(depth * rows for depth, rows in _shapes(quick)) / 1e9
    speeds = (products / times[default], products / times[best])
    return TunedCase(*case, (default.m_u, default.t_u), (best.m_u, best.t_u), *speeds, prefetch)


def _shapes(quick: bool) -> tuple[tuple[int, int], ...]:
    return QUICK_SHAPES if quick else SHAPES


def _measure(case: MicroKernelCase, instruction_set: str, quick: bool) -> dict[MicroKernel, float]:
    """Seconds of each variant for all shapes together."""
    kernels = tables.emitted(instruction_set)[case]
    total = dict.fromkeys(kernels, 0.0)
    for depth, rows in _shapes(quick):
        session, x = _session(case, depth, rows, GROUP_SIZE)
        least = dict.fromkeys(kernels, float("inf"))
        for _ in range(QUICK_ROUNDS if quick else ROUNDS):
            for kernel in kernels:
                ort.select_kernel(kernel)
                least[kernel] = min(least[kernel], *_times(session, x))
        for kernel in kernels:
            total[kernel] += least[kernel]
    return total


def _times(session: Any, x: npt.NDArray[np.float32]) -> Iterator[float]:
    for _ in range(3):
        start = time.thread_time()
        session.run(None, {"x": x})
        yield time.thread_time() - start


def _session(case: MicroKernelCase, depth: int, rows: int, group_size: int) -> tuple[Any, npt.NDArray[np.float32]]:
    """A model of one layer [rows, depth], with groups of a size, that takes the case's micro-kernels, and its x."""
    random = np.random.default_rng(0)
    weights: Arrays = {"packed": random.integers(-(2**31), 2**31, (rows, depth * case.bits // 32), dtype=np.int32)}
    attributes: dict[str, Any] = {"bits": case.bits, "K": depth, "activation_bits": {1: 8, 2: 16}.get(case.planes, 32)}
    if case.folder == "group_matmul":
        weights["scales"] = random.uniform(0.5, 1.5, (rows, depth // group_size)).astype(np.float16).astype(np.float32)
        attributes["group_size"] = group_size
        if case.operator == GROUP_LEVELS:
            weights["levels"] = _tables(random, 1, 2**case.bits, integers=case.planes > 0)[0]
    else:
        weights["lut"] = _tables(random, rows, 2**case.bits, integers=case.planes > 0)
    operator = next(each.name for each in OPS.values() if each.folder == case.folder)
    inputs = [each.name if each.name in {"x", *weights} else "" for each in OPS[operator].inputs]
    while not inputs[-1]:  # those left out at the end are not named
        inputs.pop()
    node = helper.make_node(operator, inputs, ["y"], domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node], "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [case.rows, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [case.rows, rows])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnxruntime = extras.load("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the caller's thread, whose time is measured
    ort.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session, random.normal(size=(case.rows, depth)).astype(np.float32)


def _tables(random: np.random.Generator, rows: int, entries: int, integers: bool) -> npt.NDArray[np.float32]:
    """Lookup tables that kernels take as integers, or not."""
    if not integers:
        return random.normal(size=(rows, entries)).astype(np.float32)
    steps = random.integers(-127, 128, (rows, entries))
    steps[:, 0] = 127
    return (steps / 2000).astype(np.float32)
