"""What bounds the integer kernels on a T4 and an A100, by their machine code; it needs no GPU.

    python -m benchmarks.gpu.limits [--operators int_softmax int_layer_norm ...] [--names]

Each kernel is compiled for the GPU, and its machine code runs on the CPU, whose outputs have to equal the reference
bit for bit. The instructions of an element are counted by the unit of a multiprocessor that runs them. `slack` is the
time that the GPU's memory takes to move an element's bytes, at the bandwidth that NVIDIA states, by the time that the
busiest unit takes: above 1 the memory bounds the kernel, as it does a copy. Waiting is not in it: it takes for
granted that the warps of a multiprocessor, as many as its registers have room for, hide it from each other.

Needs nvdisasm: pip install nvidia-cuda-nvdisasm
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

import numpy as np

from benchmarks.gpu.counts import Counts
from benchmarks.gpu.disassembly import nvdisasm
from benchmarks.gpu.kernel_run import run_case
from intaglio.plugins.cuda.compiler import resources
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.cases import cases
from intaglio.plugins.kernel_check.inputs import Sizes

OPERATORS = ("int_add", "int_gelu", "int_layer_norm", "int_rotary", "int_softmax", "requantize")
SIZES = Sizes(rows=(32,), few_rows=(32,), width=768, inner=768, vocabulary=1)
LANES = 32
RATES = {"alu": 64, "fma": 64, "fma wide": 32, "memory": 32, "slow": 16, "issue": 128}  # lanes in a cycle
REGISTERS, WARPS = 1 << 16, {75: 32, 80: 64}  # of a multiprocessor


class Gpu(NamedTuple):
    """A GPU by NVIDIA's data sheet."""

    name: str
    multiprocessors: int
    clock: float  # in a second
    bandwidth: float  # bytes in a second

    @property
    def bytes_in_a_cycle(self) -> float:
        """What the memory moves for each multiprocessor."""
        return self.bandwidth / self.multiprocessors / self.clock


GPUS = {75: Gpu("T4", 40, 1.59e9, 320e9), 80: Gpu("A100", 108, 1.41e9, 1555e9)}


class Bound(NamedTuple):
    """A kernel's work for an element, in cycles of a multiprocessor."""

    instructions: dict[str, float]
    memory: float
    unit: str
    units: float

    @property
    def slack(self) -> float:
        """The memory's time by the busiest unit's."""
        return self.memory / self.units


def bound(counts: Counts, elements: int, moved: int, gpu: Gpu) -> Bound:
    """Of a run over `elements` with `moved` bytes."""
    each = {unit: count * LANES / elements for unit, count in counts.units.items()}
    each["issue"] = sum(each.values())
    cycles = {unit: each.get(unit, 0) / rate for unit, rate in RATES.items()}
    cycles["fma"] += cycles.pop("fma wide")  # the same unit
    unit = max(cycles, key=lambda unit: cycles[unit])
    return Bound(each, moved / elements / gpu.bytes_in_a_cycle, unit, cycles[unit])


def moved_bytes(case: Case) -> int:
    """Of the arrays that grow with the rows."""
    x = case.inputs[0]
    assert x is not None
    given = sum(array.nbytes for array in case.inputs if array is not None and array.size == x.size)
    return given + sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in case.made())


def chosen(folder: str) -> dict[str, Case]:
    """One case for each kernel, and each dtype of its inputs, of rows that are moved four elements at a time."""
    found: dict[str, Case] = {}
    for case in cases(folder, SIZES):
        x, *others = case.inputs
        assert x is not None
        if x.size > 1 and x.shape[-1] % 4 == 0:
            bytes_like_x = [array.dtype.itemsize for array in others if array is not None and array.size == x.size]
            found.setdefault(f"{case.launch().entry}{''.join(f', {size}-byte' for size in bytes_like_x)}", case)
    return found


def main() -> None:
    """Run every kernel for both GPUs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", nargs="+", default=OPERATORS, choices=OPERATORS)
    parser.add_argument("--names", action="store_true", help="the ten most frequent instructions of each kernel")
    options = parser.parse_args()
    try:
        nvdisasm()
    except RuntimeError as error:
        print(f"Nothing to count: {error}")
        return
    print(
        f"{'kernel':46}{'GPU':6}{'B':>6}{'integer':>9}{'multiply':>10}{'all':>7}{'busiest':>9}{'slack':>7}{'warps':>7}"
    )
    for folder in options.operators:
        for name, case in chosen(folder).items():
            for sm, gpu in GPUS.items():
                outputs, counts = run_case(case, sm)
                for got, expected in zip(outputs, case.expected(), strict=True):
                    np.testing.assert_array_equal(got, expected, f"{name} for {gpu.name}")
                x = case.inputs[0]
                assert x is not None
                found = bound(counts, x.size, moved_bytes(case), gpu)
                each = found.instructions
                multiply = each.get("fma", 0) + each.get("fma wide", 0)
                print(
                    f"{name:46}{gpu.name:6}{moved_bytes(case) / x.size:6.1f}{each['alu']:9.1f}{multiply:10.1f}"
                    f"{each['issue']:7.1f}{found.unit:>9}{found.slack:7.2f}{_resident(folder, case, sm):7}",
                    flush=True,
                )
                if options.names:
                    most = counts.names.most_common(10)
                    print("    " + ", ".join(f"{what} {count * LANES / x.size:.1f}" for what, count in most))


def _resident(folder: str, case: Case, sm: int) -> int:
    """The warps of a multiprocessor that its registers have room for."""
    launch = case.launch(sm)
    warps = launch.block[0] // LANES
    registers = -(-resources(folder, sm)[launch.entry].registers // 8) * 8 * LANES * warps
    return int(min(REGISTERS // registers * warps, WARPS[sm]))


if __name__ == "__main__":
    main()
