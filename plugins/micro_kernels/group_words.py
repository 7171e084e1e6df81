"""Unpacks rows of GroupMatMul's weight for products with many rows of x, into words of 16 bits (word_products.h),

    words[k / 4][k % 2][n][k % 4 / 2] = q[n][k] - zero_point[g][n],   for 16 rows n and the units of a group g

which is the order in which the even and the odd bytes of 32 bits lie, or levels into float32 (float_products.h):

    floats[k][n] = levels[q[n][k]]
"""

from __future__ import annotations

from intaglio.plugins.micro_kernels.computed_levels import FloatBits
from intaglio.plugins.micro_kernels.instruction_sets import InstructionSet
from intaglio.plugins.micro_kernels.lut_matmul import LookupTables, emit_halves
from intaglio.plugins.micro_kernels.micro_kernel import BITS, GROUP_LEVELS, MicroKernelCase, gathers
from intaglio.plugins.micro_kernels.source import SourceWriter, plus
from intaglio.plugins.micro_kernels.units import LOAD, unit_bytes, unit_vectors
from intaglio.plugins.micro_kernels.unpacking import Unpacking

ROWS = 16  # of a unit
PLANES = 2  # of x, which takes words
LEVEL_BITS = 4  # of the numbers of levels that are bytes


def emit_words(emit: SourceWriter, isa: InstructionSet) -> None:
    """`group_words`, which calls the function of a width of numbers, `group_level_words` and `group_level_floats`."""
    arguments = "const uint8_t* unit, int64_t units, const int32_t* zero_points"
    widths = BITS["group_matmul"]
    for bits in widths:
        with emit.block(f"static void group_words_bits{bits}({arguments}, int16_t* words)"):
            _unpack(emit, MicroKernelCase("group_matmul", bits, PLANES, 1), isa)
        emit("")
    with emit.block(f"static void group_words(int bits, {arguments}, int16_t* words)"), emit.block("switch (bits)"):
        for bits in widths:
            emit(f"case {bits}: return group_words_bits{bits}(unit, units, zero_points, words);")
    emit("")
    with emit.block(f"static void group_level_words({arguments}, const GroupStretch& s, int16_t* words)"):
        _unpack(emit, MicroKernelCase(GROUP_LEVELS, LEVEL_BITS, PLANES, 1), isa)
    emit("")
    with emit.block("static void group_level_floats(int bits, const GroupStretch& s, int64_t units, float* floats)"):
        for bits in BITS[GROUP_LEVELS]:
            case = MicroKernelCase(GROUP_LEVELS, bits, 0, 1)
            unpacking, tables = Unpacking(case, isa), LookupTables(case, isa)
            if gathers(case):
                with emit.block(f"if (bits == {bits} && s.computed)"):
                    _floats(emit, bits, isa, FloatBits(isa, unpacking))
            with emit.block(f"if (bits == {bits} && !s.computed)"):
                _floats(emit, bits, isa, tables)


def _floats(emit: SourceWriter, bits: int, isa: InstructionSet, levels: LookupTables | FloatBits) -> None:
    blocks, vectors = range(ROWS // isa.lanes), unit_vectors(bits, 32)
    levels.constants(emit)
    levels.load(emit, 0)
    unit = unit_bytes(bits)
    emit("const uint8_t* unit = s.units;")
    with emit.block(f"for (int64_t u = 0; u < units; ++u, unit += {unit}, floats += {vectors * ROWS})"):
        for block in blocks:
            name = f"loaded{block}"
            levels.unpacking.load(emit, name, "unit", block * LOAD // len(blocks), list(range(vectors)))
            for vector in range(vectors):
                level = f"level{block}_{vector}"
                levels.entries(emit, level, 0, name, vector)
                place = plus("floats", vector * ROWS + block * isa.lanes)
                emit(f"{isa.forms.store.format(place, level)};")


def _unpack(emit: SourceWriter, case: MicroKernelCase, isa: InstructionSet) -> None:
    assert isa.bytes is not None
    forms, unpacking = isa.forms, Unpacking(case, isa)
    levels = LookupTables(case, isa) if case.operator == GROUP_LEVELS else None
    vectors, blocks = unit_vectors(case.bits, 8), range(ROWS // isa.lanes)
    if levels:
        levels.constants(emit)
        levels.load(emit, 0)
    else:
        unpacking.constants(emit, mask=(1 << case.bits) - 1)
    for block in blocks:
        address = f"reinterpret_cast<const uint8_t*>({plus('zero_points', block * isa.lanes)})"
        emit(f"const {forms.integers} of_rows{block} = {forms.load_integers.format(address)};")
        both = forms.add.format(f"of_rows{block}", forms.shift_left.format(f"of_rows{block}", 16))
        emit(f"const {forms.integers} zero_point{block} = {both};")
    unit, words = unit_bytes(case.bits), vectors * 4 * ROWS
    with emit.block(f"for (int64_t u = 0; u < units; ++u, unit += {unit}, words += {words})"):
        for block in blocks:
            name = f"loaded{block}"
            unpacking.load(emit, name, "unit", block * LOAD // len(blocks), list(range(vectors)))
            for vector in range(vectors):
                numbers = f"numbers{block}_{vector}"
                if levels:
                    levels.entries(emit, numbers, 0, name, vector)
                else:
                    emit(f"const {forms.integers} {numbers} = {unpacking.numbers(name, vector)};")
                emit_halves(emit, isa, f"w{block}_{vector}", numbers)
                for half in range(2):
                    steps = isa.bytes.subtract_words.format(f"w{block}_{vector}_{half}", f"zero_point{block}")
                    place = (vector * 2 + half) * 2 * ROWS + block * 2 * isa.lanes
                    emit(f"{isa.bytes.store_words.format(plus('words', place), steps)};")
