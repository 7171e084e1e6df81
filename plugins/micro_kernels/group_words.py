"""Unpacks rows of GroupMatMul's weight into words of 16 bits, for products with many rows of x (word_products.h).

    words[k / 4][k % 2][n][k % 4 / 2] = q[n][k] - zero_point[g][n],   for 16 rows n and the units of a group g

which is the order in which the even and the odd bytes of 32 bits lie.
"""

from __future__ import annotations

from intaglio.plugins.micro_kernels.instruction_sets import InstructionSet
from intaglio.plugins.micro_kernels.micro_kernel import MicroKernelCase
from intaglio.plugins.micro_kernels.source import SourceWriter, plus
from intaglio.plugins.micro_kernels.units import LOAD, unit_bytes, unit_vectors
from intaglio.plugins.micro_kernels.unpacking import Unpacking

ROWS = 16  # of a unit
PLANES = 2  # of x, which takes words


def emit_words(emit: SourceWriter, widths: tuple[int, ...], isa: InstructionSet) -> None:
    """A function for each width of numbers, and `group_words`, which calls the one of `bits`."""
    arguments = "const uint8_t* unit, int64_t units, const int32_t* zero_points, int16_t* words"
    for bits in widths:
        with emit.block(f"static void group_words_bits{bits}({arguments})"):
            _unpack(emit, bits, isa)
        emit("")
    with emit.block(f"static void group_words(int bits, {arguments})"), emit.block("switch (bits)"):
        for bits in widths:
            emit(f"case {bits}: return group_words_bits{bits}(unit, units, zero_points, words);")


def _unpack(emit: SourceWriter, bits: int, isa: InstructionSet) -> None:
    assert isa.bytes is not None
    forms, unpacking = isa.forms, Unpacking(MicroKernelCase("group_matmul", bits, PLANES, 1), isa)
    vectors, blocks = unit_vectors(bits, 8), range(ROWS // isa.lanes)
    vector_bytes = LOAD // len(blocks)
    unpacking.constants(emit, mask=(1 << bits) - 1)
    for block in blocks:
        address = f"reinterpret_cast<const uint8_t*>({plus('zero_points', block * isa.lanes)})"
        emit(f"const {forms.integers} of_rows{block} = {forms.load_integers.format(address)};")
        both = isa.forms.add.format(f"of_rows{block}", forms.shift_left.format(f"of_rows{block}", 16))
        emit(f"const {forms.integers} zero_point{block} = {both};")
    with emit.block(f"for (int64_t u = 0; u < units; ++u, unit += {unit_bytes(bits)}, words += {vectors * 4 * ROWS})"):
        for block in blocks:
            name = f"loaded{block}"
            unpacking.load(emit, name, "unit", block * vector_bytes, list(range(vectors)))
            for vector in range(vectors):
                numbers = f"numbers{block}_{vector}"
                emit(f"const {forms.integers} {numbers} = {unpacking.numbers(name, vector)};")
                for half, form in enumerate((isa.bytes.even_words, isa.bytes.odd_words)):
                    steps = isa.bytes.subtract_words.format(form.format(numbers), f"zero_point{block}")
                    place = (vector * 2 + half) * 2 * ROWS + block * 2 * isa.lanes
                    emit(f"{isa.bytes.store_words.format(plus('words', place), steps)};")
