"""Looks rows of LutMatMul's weight up for products with many rows of x, as bytes (byte_panels.h),

    bytes[k / 4][n][k % 4] = entry of row n's table at index[n][k]        for 16 rows n

with the 64 bytes of 16 other rows after each 64.
"""

from __future__ import annotations

from intaglio.plugins.micro_kernels.instruction_sets import InstructionSet
from intaglio.plugins.micro_kernels.lut_matmul import BLOCK, GROUP, LookupTables
from intaglio.plugins.micro_kernels.micro_kernel import BITS, MicroKernelCase
from intaglio.plugins.micro_kernels.source import SourceWriter, plus
from intaglio.plugins.micro_kernels.units import LOAD, unit_bytes, unit_vectors

PANEL_STEP = 2 * LOAD * LOAD // 4  # bytes from a vector of K to the next: 16 times four of K, of 32 rows


def emit_bytes(emit: SourceWriter, isa: InstructionSet) -> None:
    """`lut_bytes`, which calls the function of a width of indices."""
    arguments = "const LutStretch& s, int64_t group_bytes, uint8_t* bytes"
    widths = BITS["lut_matmul"]
    for bits in widths:
        with emit.block(f"static void lut_bytes_bits{bits}({arguments})"):
            _look_up(emit, MicroKernelCase("lut_matmul", bits, 1, 2), isa)
        emit("")
    with emit.block(f"static void lut_bytes(int bits, {arguments})"), emit.block("switch (bits)"):
        for bits in widths:
            emit(f"case {bits}: return lut_bytes_bits{bits}(s, group_bytes, bytes);")


def _look_up(emit: SourceWriter, case: MicroKernelCase, isa: InstructionSet) -> None:
    table, vectors, integers = LookupTables(case, isa), unit_vectors(case.bits, 8), isa.forms.integers
    table.constants(emit)
    emit(f"alignas(64) uint8_t tables[{BLOCK * LOAD}];  // of signed bytes")
    with emit.block(f"for (int row = 0; row < {BLOCK}; ++row)"):
        repeated = f"repeat<{2**case.bits}>(s.tables + row * s.table_stride)"
        emit(f"_mm512_store_si512(tables + row * {LOAD}, _mm512_xor_si512({repeated}, _mm512_set1_epi8(-128)));")
    emit("const uint8_t* unit = s.units;")
    step = f"unit += {GROUP * unit_bytes(case.bits)}, bytes += {vectors * PANEL_STEP}"
    with emit.block(f"for (int64_t k = 0; k < s.depth; k += {vectors * LOAD}, {step})"):
        for vector in range(vectors):
            with emit.block(""):
                emit(f"{integers} rows[{BLOCK}];")
                for row in range(BLOCK):
                    with emit.block(""):
                        emit(f"const {integers} t{row} = _mm512_load_si512(tables + {row * LOAD});")
                        place = plus(f"unit + {row // GROUP} * group_bytes", row % GROUP * unit_bytes(case.bits))
                        table.unpacking.load(emit, "loaded", place, 0, [vector])
                        table.entries(emit, "entries", row, "loaded", vector)
                        emit(f"rows[{row}] = entries;")
                emit(f"put_rows(rows, {plus('bytes', vector * PANEL_STEP)});")
