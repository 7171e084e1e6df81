"""The intrinsics of each instruction set for the micro-kernels.

A form is C++ with its operands as {0}, {1}, ...; integers are vectors of 32-bit lanes unless the name says bytes. Lanes
of `float32` and of integers are as many: 4, 8 or 16. The forms of `portable` are functions of
plugins/cpu/simd_float.h and plugins/cpu/index_units.h, which every compiler translates; those of AArch64 are the same,
and functions of plugins/cpu/micro_kernel_neon.h.

Those with matrix tiles have the micro-kernels of the one without (`WITHOUT_TILES`).

To add an instruction set: an entry here, its compiler options in plugins/ort/build.py, and its name in
plugins/cpu/isa.h.
"""

from __future__ import annotations

from typing import NamedTuple


class Forms(NamedTuple):
    """The C++ of one width of vectors."""

    floats: str  # type of a vector of float32
    integers: str  # type of a vector of integers
    zero: str
    load: str  # float32 from an address
    store: str  # to an address, float32
    broadcast: str  # the float32 at an address, in all lanes
    multiply_add: str  # a·b + c
    sum: str  # of the lanes of float32
    load_integers: str  # from the address of bytes
    set_integers: str  # an int in all lanes
    shift_right: str  # each lane by a number of bits
    shift_left: str
    bit_and: str
    add: str
    subtract: str
    to_float: str
    merge: str  # the bits of {1} where {0} has ones, else those of {2}
    table: str  # type of a table of float32
    load_table: str  # from an address
    look_up: str  # the entries of table {0} that the lowest bits of {1} name
    choose: str  # {0}, or {1} where bit 3 of {2} is set
    gather: str  # the float32 at address {0} + each of {1}
    floats_of: str = ""  # byte {0} of each lane of {1} as float32, whose bits it has some of: FormVectors {2}
    look_up_two: str = ""  # the entries of tables {0} and {1}, one after the other, that the lowest bits of {2} name


class ByteForms(NamedTuple):
    """The C++ of products of unsigned bytes of a weight with signed bytes of x, in a whole vector.

    With VNNI one instruction adds up four neighbours, and so does AArch64's dot product, of signed bytes: numbers that
    take all of a byte are packed less 128. Without, products of two neighbours become sums of 16 bits, a few
    of which are added up before they are widened: that takes weights of at most 6 bits. Those of 8 bits are widened
    themselves, for products of 16 bits.
    """

    shift_right: str  # pairs of bytes; bits shifted in from the neighbouring byte are masked or ignored
    shift_left: str
    set_bytes: str
    zero: str
    multiply: str  # each 32-bit lane of {0} by that of {1}
    multiply_add: str = ""  # {0} + the sums of four neighbours of {1} (unsigned)·{2} (signed)
    multiply_pairs: str = ""  # without it: the 16-bit sums of two neighbours of {0} (unsigned)·{1} (signed)
    add_pairs: str = ""  # {0} + {1}, in 16 bits
    sum: str = ""  # of the 32-bit lanes
    widen_add: str = ""  # {0} + the sums of two neighbours of the 16-bit {1}
    even_words: str = ""  # the first of each two bytes, in 16 bits
    odd_words: str = ""  # the second
    subtract_words: str = ""  # {0} - {1}, in 16 bits
    store_words: str = ""  # to an address, {1}
    multiply_words: str = ""  # the 32-bit sums of two neighbours of the 16-bit {0}·{1}
    look_up: str = ""  # the entries of table {0}, repeated over the vector, that the bytes {1} name
    index_bits: int = 0  # of those bytes that a look-up reads
    index_needs_mask: bool = False  # it reads others, too

    @property
    def adds_pairs(self) -> bool:
        """Whether products are added up in 16 bits first."""
        return bool(self.multiply_pairs)

    def takes(self, bits: int) -> bool:
        """Whether the products of a weight of `bits` fit."""
        return not self.adds_pairs or pairs_that_fit(bits) > 0


def pairs_that_fit(bits: int) -> int:
    """How many sums of two products of an unsigned number of `bits` and a signed byte stay in 16 bits together."""
    return int((2**15 - 1) // (2 * 2**7 * (2**bits - 1)))


class InstructionSet(NamedTuple):
    """The generator's description of an instruction set."""

    name: str
    registers: int  # vectors
    lanes: int  # of float32
    forms: Forms
    bytes: ByteForms | None = None
    table_lanes: int = 16  # entries of float32 that one look-up chooses from
    table_registers: int = 1  # that such a table takes
    index_needs_mask: bool = False  # a look-up takes more bits for its index than the table needs


PORTABLE = Forms(
    floats="F32",
    integers="Words",
    zero="set_float(0)",
    load="load_float({0})",
    store="store_float({0}, {1})",
    broadcast="set_float(*({0}))",
    multiply_add="multiply_add({0}, {1}, {2})",
    sum="sum({0})",
    load_integers="load_words({0})",
    set_integers="set_words({0})",
    shift_right="({0} >> {1})",
    shift_left="({0} << {1})",
    bit_and="({0} & {1})",
    add="({0} + {1})",
    subtract="({0} - {1})",
    to_float="to_float({0})",
    merge="(({1} & {0}) | ({2} & ~{0}))",
    table="float*",
    load_table="{0}",
    look_up="look_up({0}, {1})",
    choose="",
    gather="look_up({0}, {1})",
)

AVX2 = Forms(
    floats="__m256",
    integers="__m256i",
    zero="_mm256_setzero_ps()",
    load="_mm256_loadu_ps({0})",
    store="_mm256_storeu_ps({0}, {1})",
    broadcast="_mm256_broadcast_ss({0})",
    multiply_add="_mm256_fmadd_ps({0}, {1}, {2})",
    sum="sum({0})",
    load_integers="_mm256_load_si256(reinterpret_cast<const __m256i*>({0}))",
    set_integers="_mm256_set1_epi32({0})",
    shift_right="_mm256_srli_epi32({0}, {1})",
    shift_left="_mm256_slli_epi32({0}, {1})",
    bit_and="_mm256_and_si256({0}, {1})",
    add="_mm256_add_epi32({0}, {1})",
    subtract="_mm256_sub_epi32({0}, {1})",
    to_float="_mm256_cvtepi32_ps({0})",
    merge="_mm256_or_si256(_mm256_and_si256({1}, {0}), _mm256_andnot_si256({0}, {2}))",
    table="__m256",
    load_table="_mm256_loadu_ps({0})",
    look_up="_mm256_permutevar8x32_ps({0}, {1})",
    choose="_mm256_blendv_ps({0}, {1}, _mm256_castsi256_ps(_mm256_slli_epi32({2}, 28)))",
    gather="_mm256_i32gather_ps({0}, {1}, 4)",
    floats_of="floats_of<{0}>({1}, {2})",
)

AVX512 = Forms(
    floats="__m512",
    integers="__m512i",
    zero="_mm512_setzero_ps()",
    load="_mm512_loadu_ps({0})",
    store="_mm512_storeu_ps({0}, {1})",
    broadcast="_mm512_set1_ps(*({0}))",
    multiply_add="_mm512_fmadd_ps({0}, {1}, {2})",
    sum="_mm512_reduce_add_ps({0})",
    load_integers="_mm512_load_si512({0})",
    set_integers="_mm512_set1_epi32({0})",
    shift_right="_mm512_srli_epi32({0}, {1})",
    shift_left="_mm512_slli_epi32({0}, {1})",
    bit_and="_mm512_and_si512({0}, {1})",
    add="_mm512_add_epi32({0}, {1})",
    subtract="_mm512_sub_epi32({0}, {1})",
    to_float="_mm512_cvtepi32_ps({0})",
    merge="_mm512_ternarylogic_epi32({0}, {1}, {2}, 0xCA)",
    table="__m512",
    load_table="_mm512_loadu_ps({0})",
    look_up="_mm512_permutexvar_ps({1}, {0})",
    choose="",
    gather="_mm512_i32gather_ps({1}, {0}, 4)",
    look_up_two="_mm512_permutex2var_ps({0}, {2}, {1})",
)

VNNI = ByteForms(
    shift_right="_mm512_srli_epi16({0}, {1})",
    shift_left="_mm512_slli_epi16({0}, {1})",
    set_bytes="_mm512_set1_epi8({0})",
    zero="_mm512_setzero_si512()",
    multiply="_mm512_mullo_epi32({0}, {1})",
    multiply_add="_mm512_dpbusd_epi32({0}, {1}, {2})",
    sum="_mm512_reduce_add_epi32({0})",
    look_up="_mm512_shuffle_epi8({0}, {1})",
    index_bits=4,
    index_needs_mask=True,
)
AVX2_BYTES = ByteForms(
    shift_right="_mm256_srli_epi16({0}, {1})",
    shift_left="_mm256_slli_epi16({0}, {1})",
    set_bytes="_mm256_set1_epi8({0})",
    zero="_mm256_setzero_si256()",
    multiply="_mm256_mullo_epi32({0}, {1})",
    multiply_pairs="_mm256_maddubs_epi16({0}, {1})",
    add_pairs="_mm256_add_epi16({0}, {1})",
    widen_add="_mm256_add_epi32({0}, _mm256_madd_epi16({1}, _mm256_set1_epi16(1)))",
    even_words="_mm256_and_si256({0}, _mm256_set1_epi16(255))",
    odd_words="_mm256_srli_epi16({0}, 8)",
    subtract_words="_mm256_sub_epi16({0}, {1})",
    store_words="_mm256_store_si256(reinterpret_cast<__m256i*>({0}), {1})",
    multiply_words="_mm256_madd_epi16({0}, {1})",
    look_up="_mm256_shuffle_epi8({0}, {1})",
    index_bits=4,
    index_needs_mask=True,
)
VBMI = VNNI._replace(look_up="_mm512_permutexvar_epi8({1}, {0})", index_bits=6, index_needs_mask=False)
NEON = PORTABLE._replace(table="FloatTable", load_table="load_table({0})")
NEON_BYTES = ByteForms(
    shift_right=NEON.shift_right,
    shift_left=NEON.shift_left,
    set_bytes="set_bytes({0})",
    zero="set_words(0)",
    multiply="({0} * {1})",
    multiply_pairs="multiply_pairs({0}, {1})",
    add_pairs="vaddq_s16({0}, {1})",
    widen_add="widen_add({0}, {1})",
)
DOT_PRODUCT = NEON_BYTES._replace(
    multiply_pairs="",
    multiply_add="add_products({0}, {1}, {2})",
    sum="sum_words({0})",
    look_up="look_up_bytes({0}, {1})",
    index_bits=4,
    index_needs_mask=True,
)

INSTRUCTION_SETS = {
    each.name: each
    for each in (
        InstructionSet("portable", 16, 4, PORTABLE, index_needs_mask=True),
        InstructionSet("avx2", 16, 8, AVX2, AVX2_BYTES, table_lanes=8),
        InstructionSet("avx512", 32, 16, AVX512),
        InstructionSet("avx512vnni", 32, 16, AVX512, VNNI),
        InstructionSet("avx512vbmi", 32, 16, AVX512, VBMI),
        InstructionSet("neon", 32, 4, NEON, NEON_BYTES, table_registers=4, index_needs_mask=True),
        InstructionSet("dotprod", 32, 4, NEON, DOT_PRODUCT, table_registers=4, index_needs_mask=True),
    )
}

WITHOUT_TILES = {"portabletiles": "portable", "amx": "avx512vbmi"}  # as isa.h has it
