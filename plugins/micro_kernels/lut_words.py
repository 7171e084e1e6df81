"""Unpacks a row of LutMatMul's weight into words of 16 bits, for products with many rows of x (word_products.h).

    words[k / 32][k % 2][k % 32 / 2] = entry of the row's table at index[k], plus 128

which is the order in which a vector of bytes is widened.
"""

from __future__ import annotations

from intaglio.plugins.micro_kernels.instruction_sets import InstructionSet
from intaglio.plugins.micro_kernels.lut_matmul import GROUP, LookupTables, emit_halves
from intaglio.plugins.micro_kernels.micro_kernel import BITS, MicroKernelCase
from intaglio.plugins.micro_kernels.source import SourceWriter, plus
from intaglio.plugins.micro_kernels.units import LOAD, unit_bytes, unit_vectors

PLANES = 2  # of x, which takes words


def emit_words(emit: SourceWriter, isa: InstructionSet) -> None:
    """`lut_words`, which calls the function of a width of indices."""
    arguments = "const LutStretch& s, int16_t* words"
    widths = BITS["lut_matmul"]
    for bits in widths:
        with emit.block(f"static void lut_words_bits{bits}({arguments})"):
            _unpack(emit, MicroKernelCase("lut_matmul", bits, PLANES, 1), isa)
        emit("")
    with emit.block(f"static void lut_words(int bits, {arguments})"), emit.block("switch (bits)"):
        for bits in widths:
            emit(f"case {bits}: return lut_words_bits{bits}(s, words);")


def _unpack(emit: SourceWriter, case: MicroKernelCase, isa: InstructionSet) -> None:
    assert isa.bytes is not None
    table, vectors, lanes = LookupTables(case, isa), unit_vectors(case.bits, 8), 4 * isa.lanes
    table.constants(emit)
    table.load(emit, 0)
    emit("const uint8_t* unit = s.units;")
    step = vectors * LOAD
    with emit.block(
        f"for (int64_t k = 0; k < s.depth; k += {step}, unit += {GROUP * unit_bytes(case.bits)}, words += {step})"
    ):
        for part in range(0, LOAD, lanes):
            table.unpacking.load(emit, f"loaded{part}", "unit", part, list(range(vectors)))
            for vector in range(vectors):
                name = f"{part}_{vector}"
                table.entries(emit, f"entries{name}", 0, f"loaded{part}", vector)
                emit_halves(emit, isa, f"w{name}", f"entries{name}")
                for half in range(2):
                    place = plus("words", vector * LOAD + part + half * lanes // 2)
                    emit(f"{isa.bytes.store_words.format(place, f'w{name}_{half}')};")
