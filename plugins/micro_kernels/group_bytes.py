"""Unpacks rows of GroupMatMul's weight for products with many rows of x, into bytes (byte_products.h),

    bytes[k / 4][n][k % 4] = q[n][k], or the level of q[n][k] plus 128,   for 16 rows n and the units of a group

with the 64 bytes of 16 other rows after each 64.
"""

from __future__ import annotations

from intaglio.plugins.micro_kernels.instruction_sets import InstructionSet
from intaglio.plugins.micro_kernels.lut_matmul import LookupTables
from intaglio.plugins.micro_kernels.micro_kernel import BITS, GROUP_LEVELS, MicroKernelCase
from intaglio.plugins.micro_kernels.source import SourceWriter, plus
from intaglio.plugins.micro_kernels.units import LOAD, unit_vectors
from intaglio.plugins.micro_kernels.unpacking import Unpacking

PLANES = 2  # of x
LEVEL_BITS = 4  # of the numbers of levels that are bytes
STEP = 2 * LOAD  # from 16 rows' bytes to their next: another 16 rows' lie between


def emit_bytes(emit: SourceWriter, isa: InstructionSet) -> None:
    """`group_bytes`, which calls the function of a width of numbers, and `group_level_bytes`."""
    arguments = "const uint8_t* unit, int64_t units, const GroupStretch& s, uint8_t* bytes"
    widths = BITS["group_matmul"]
    for bits in widths:
        with emit.block(f"static void group_bytes_bits{bits}({arguments})"):
            _unpack(emit, MicroKernelCase("group_matmul", bits, PLANES, 1), isa)
        emit("")
    with emit.block(f"static void group_bytes(int bits, {arguments})"), emit.block("switch (bits)"):
        for bits in widths:
            emit(f"case {bits}: return group_bytes_bits{bits}(unit, units, s, bytes);")
    emit("")
    with emit.block(f"static void group_level_bytes({arguments})"):
        _unpack(emit, MicroKernelCase(GROUP_LEVELS, LEVEL_BITS, PLANES, 1), isa)


def _unpack(emit: SourceWriter, case: MicroKernelCase, isa: InstructionSet) -> None:
    levels = LookupTables(case, isa) if case.operator == GROUP_LEVELS else None
    unpacking, vectors = levels.unpacking if levels else Unpacking(case, isa), unit_vectors(case.bits, 8)
    if levels:
        levels.constants(emit)
        levels.load(emit, 0)
    else:
        unpacking.constants(emit, mask=(1 << case.bits) - 1)
    with emit.block(f"for (int64_t u = 0; u < units; ++u, unit += s.unit_stride, bytes += {vectors * STEP})"):
        unpacking.load(emit, "loaded", "unit", 0, list(range(vectors)))
        for vector in range(vectors):
            numbers = f"numbers{vector}"
            if levels:
                levels.entries(emit, numbers, 0, "loaded", vector)
            else:
                emit(f"const {isa.forms.integers} {numbers} = {unpacking.numbers('loaded', vector)};")
            emit(f"_mm512_store_si512({plus('bytes', vector * STEP)}, {numbers});")
