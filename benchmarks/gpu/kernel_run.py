"""Run the machine code of an operator's CUDA kernel for a GPU on the CPU, as a launch on that GPU would."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.counts import Counts
from benchmarks.gpu.disassembly import Code, disassemble
from benchmarks.gpu.memory import Memory
from benchmarks.gpu.registers import LANES
from benchmarks.gpu.warp import Warp
from intaglio.plugins.cuda.compiler import compile_kernel
from intaglio.plugins.cuda.launching.geometry import Launch, at_least_1
from intaglio.plugins.kernel_check.case import Case

PARAMETERS = 0x160  # where a kernel's parameters begin in constant memory, for GPUs before Hopper
SHARED = 48 << 10  # bytes


def run_case(case: Case, sm: int) -> tuple[list[npt.NDArray[Any]], Counts]:
    """The outputs of a case's kernel, compiled for compute capability `sm`, 75 or 80, and what its warps did."""
    launch, memory = case.launch(sm), Memory()
    given = [memory.put(array) for array in case.inputs if array is not None]
    made = [memory.put(np.zeros(shape, dtype)) for shape, dtype in case.made()]
    parameters = b"".join(
        [
            *(address.to_bytes(8, "little") for address in given),
            *(int(scalar).to_bytes(4, "little") for scalar in launch.scalars),
            b"\0" * (len(launch.scalars) % 2 * 4),  # pointers are aligned
            *(address.to_bytes(8, "little") for address in made),
        ]
    )
    counts = run(_kernels(case.folder, sm)[launch.entry], launch, parameters, memory)
    return [memory.get(at, dtype, shape) for at, (shape, dtype) in zip(made, case.made(), strict=True)], counts


@cache
def _kernels(folder: str, sm: int) -> dict[str, Code]:
    return disassemble(compile_kernel(folder, sm).cubin)


def run(code: Code, launch: Launch, parameters: bytes, memory: Memory) -> Counts:
    """Runs all blocks, one after the other; the warps of a block take turns at its barriers."""
    counts, grid = Counts(), [at_least_1(length) for length in launch.grid]
    constants = bytearray(PARAMETERS) + parameters
    constants[:24] = np.array([*launch.block, *grid], np.uint32).tobytes()
    for z, y, x in np.ndindex(*reversed(grid)):
        places = {f"SR_CTAID.{axis}": _lanes(at) for axis, at in zip("XYZ", (x, y, z), strict=True)}
        warps, shared = _warps(launch.block), Memory(SHARED)
        running = [Warp(code, memory, shared, bytes(constants), {**places, **warp}, counts) for warp in warps]
        counts.warps += len(warps)
        while running := [warp for warp in running if not warp.ended.all()]:
            for warp in running:
                warp.run()
    return counts


def _warps(block: Sequence[int]) -> list[dict[str, npt.NDArray[np.uint32]]]:
    """The places of the lanes of each warp in a block of one axis."""
    return [
        {"SR_TID.X": np.arange(first, first + LANES, dtype=np.uint32), "SR_TID.Y": _lanes(0), "SR_TID.Z": _lanes(0)}
        for first in range(0, block[0], LANES)
    ]


def _lanes(value: int) -> npt.NDArray[np.uint32]:
    return np.full(LANES, value, np.uint32)
