"""The parameters of micro-kernels, their registers, and the choice of the emitted ones.

A micro-kernel multiplies `rows` rows of x with `t_u` vectors' worth of the weight's rows, in steps of `m_u` vectors
along K. QIGen holds m_u vectors of x, m_u·t_u of the weight and t_u of y in registers and asks (equation 4) that

    m_u + m_u·t_u + t_u <= number of vector registers

Ours hold more: x has a register for each of its planes, y for each row and plane of x, and beside them lie tables, zero
points, masks and the words that are being unpacked:

    planes·m_u + m_u·t_u + rows·planes·t_u + constants <= number of vector registers

With one row, one plane and no constants that is equation 4. Where sums of two products are added up in 16 bits, x needs
one register at a time, and m_u of them are widened together. In words of 16 bits a vector of bytes takes two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from intaglio.plugins.group_matmul import signature as group_matmul
from intaglio.plugins.lut_matmul import signature as lut_matmul
from intaglio.plugins.micro_kernels.instruction_sets import InstructionSet
from intaglio.plugins.micro_kernels.units import unit_vectors

# Rows of x at once, by operator and planes; a batch is cut into these. In fixed point more are no faster with VNNI: the
# products alone fill the processor's pipes then.
GROUP_LEVELS = "group_levels"
ROWS = {
    "group_matmul": {0: (1, 2, 4), 1: (1, 2), 2: (1, 2), 3: (1, 2)},
    GROUP_LEVELS: {0: (1, 2, 4), 1: (1, 2), 2: (1, 2), 3: (1, 2)},
    "lut_matmul": {0: (1, 2, 4), 1: (1, 2), 2: (1, 2), 3: (1,)},
}
ROWS_OF_PAIRS = {2: (1, 2, 4), 3: (1, 2)}  # of GroupMatMul without VNNI
ROWS_BESIDE_WORDS = {**ROWS_OF_PAIRS, 2: (1, 2)}  # where three rows of x and more are multiplied in words
M_U = (1, 2, 4, 8)
T_U = (1, 2, 4)
TILE_ROWS = 64  # of a tile of GroupMatMul's weight
VARIANTS = 3  # of a case that are emitted

SIGNATURES = {"group_matmul": group_matmul.SIGNATURE, "lut_matmul": lut_matmul.SIGNATURE}
# Of a weight's numbers, by operator; GroupMatMul with levels has micro-kernels of its own.
BITS = {operator: tuple(map(int, each.attribute("bits").choices)) for operator, each in SIGNATURES.items()}
BITS[GROUP_LEVELS] = group_matmul.LEVEL_BITS


class MicroKernelCase(NamedTuple):
    """The case that a micro-kernel is chosen for."""

    operator: str  # "group_matmul", "group_levels" or "lut_matmul"
    bits: int  # of a number of the weight
    planes: int  # bytes of x in fixed point; 0: float32
    rows: int  # of x at once

    @property
    def folder(self) -> str:
        """The folder of the operator."""
        return "group_matmul" if self.operator == GROUP_LEVELS else self.operator


class MicroKernel(NamedTuple):
    """A case's variant: its steps along K, and its vectors of rows (GroupMatMul) or rows (LutMatMul) of the weight."""

    case: MicroKernelCase
    m_u: int
    t_u: int
    prefetch: int = 0  # the largest group size with which it prefetches far ahead; LutMatMul: not 0 if it does

    @property
    def emitted(self) -> MicroKernel:
        """The same without `prefetch`, which each call states and no source depends on."""
        return self._replace(prefetch=0)

    @property
    def name(self) -> str:
        """Its name in C++: `group_matmul_bits4_planes2_rows1_m2_t4`."""
        operator, bits, planes, rows = self.case
        return f"{operator}_bits{bits}_planes{planes}_rows{rows}_m{self.m_u}_t{self.t_u}"


def reads_one_stream(kernel: MicroKernel, isa: InstructionSet) -> bool:
    """Whether it reads the weight in the order in which that lies, so that it can be prefetched from far ahead."""
    return kernel.case.operator == "lut_matmul" or kernel.t_u * isa.lanes == TILE_ROWS


def lane_bits(planes: int) -> int:
    """Bits of the lanes that numbers lie in: words for float32, bytes for fixed point."""
    return 32 if planes == 0 else 8


def registers(kernel: MicroKernel, isa: InstructionSet) -> int:
    """Vector registers that a micro-kernel holds at once."""
    case, m_u, t_u = kernel.case, kernel.m_u, kernel.t_u
    planes = sum_count(case, isa)
    x = 2 if adds_pairs(case.planes, isa) else planes * m_u  # a value and the ones that widen
    weights = 2 if multiplies_words(case, isa) else 1
    return x + weights * m_u * t_u + case.rows * planes * t_u + _constants(case, t_u, isa)


def _constants(case: MicroKernelCase, t_u: int, isa: InstructionSet) -> int:
    loaded = 1 if 8 % case.bits == 0 else 3  # words that are being unpacked, and the masks that join several of them
    if case.operator == "group_matmul":
        zero_points = 0 if case.planes else t_u
        return zero_points + 1 + loaded  # and the mask
    if case.operator == GROUP_LEVELS:
        tables = 5 * computes(case, isa) if gathers(case) else 1 if case.planes else _table_registers(case, isa)
        return tables + 1 + loaded  # and the mask
    tables = 1 + looks_up_pairs(case, isa) if case.planes else _table_registers(case, isa)
    return tables * t_u + masks_index(case, isa) + loaded


def _table_registers(case: MicroKernelCase, isa: InstructionSet) -> int:
    """Registers of a table of float32."""
    return isa.table_registers * int(-(-(2**case.bits) // isa.table_lanes))


def adds_pairs(planes: int, isa: InstructionSet) -> bool:
    """Whether products with so many planes of x are added up in 16 bits first."""
    return planes > 0 and isa.bytes is not None and isa.bytes.adds_pairs


def multiplies_words(case: MicroKernelCase, isa: InstructionSet) -> bool:
    """Whether x is in words of 16 bits, as sums of two products of bytes would not fit into these."""
    if case.planes != 2 or isa.bytes is None or not isa.bytes.multiply_words:
        return False
    return not isa.bytes.takes(8 if case.operator != "group_matmul" else case.bits)  # entries of tables are bytes


def sum_count(case: MicroKernelCase, isa: InstructionSet) -> int:
    """Vectors of sums for each row of x and vector of rows of the weight."""
    return 1 if multiplies_words(case, isa) else max(case.planes, 1)


def looks_up_pairs(case: MicroKernelCase, isa: InstructionSet) -> bool:
    """Whether LutMatMul keeps a second table, for the upper of two indices in the bits that a look-up reads.

    It spares half of the shifts. With more rows of x, their sums need the registers.
    """
    return bool(case.planes) and case.rows == 1 and isa.bytes is not None and isa.bytes.index_bits >= 2 * case.bits


def gathers(case: MicroKernelCase) -> bool:
    """Whether a table has more entries than registers hold, so that it is read from memory."""
    return case.bits > 4


def masks_index(case: MicroKernelCase, isa: InstructionSet) -> bool:
    """Whether a look-up needs its index without the bits beside it."""
    bytes_need = isa.bytes is not None and isa.bytes.index_needs_mask
    return gathers(case) or (bytes_need if case.planes else isa.index_needs_mask)


def computes(case: MicroKernelCase, isa: InstructionSet) -> bool:
    """Whether levels that lie on lines, or have a float32's bits, are computed, of which five registers hold how."""
    forms = isa.forms.look_up_two or isa.forms.floats_of
    return gathers(case) and case.operator == GROUP_LEVELS and bool(forms)


def planes_of(operator: str, bits: int, isa: InstructionSet) -> tuple[int, ...]:
    """How an operator takes x. GroupMatMul's weights are integers, others only where tables of bytes allow it."""
    if isa.bytes is None:
        return (0,)
    fixed_point = (2, 3) if isa.bytes.adds_pairs else (1, 2, 3)
    if operator == "group_matmul":
        return fixed_point if isa.bytes.takes(bits) else (0, 2) if isa.bytes.multiply_words else (0,)
    if not isa.bytes.look_up or (operator == GROUP_LEVELS and bits > 4):
        return (0,)
    return (0, 2) if isa.bytes.multiply_words else (0, *fixed_point)


def rows_of(operator: str, planes: int, isa: InstructionSet) -> tuple[int, ...]:
    """The rows of x that micro-kernels take at once, ascending; none where x is not taken in so many planes."""
    if adds_pairs(planes, isa):
        rows = ROWS_BESIDE_WORDS if isa.bytes and isa.bytes.multiply_words else ROWS_OF_PAIRS
        return rows.get(planes, ())
    return ROWS[operator].get(planes, ())


def cases(operator: str, isa: InstructionSet) -> Iterator[MicroKernelCase]:
    """What micro-kernels of an operator are chosen for, on an instruction set."""
    for bits in BITS[operator]:
        for planes in planes_of(operator, bits, isa):
            for rows in rows_of(operator, planes, isa):
                yield MicroKernelCase(operator, bits, planes, rows)


def search(case: MicroKernelCase, isa: InstructionSet) -> list[MicroKernel]:
    """Every micro-kernel of a case whose values fit into the registers."""
    found = [MicroKernel(case, m_u, t_u) for t_u in T_U for m_u in M_U if _steps_fit(case, m_u)]
    return [kernel for kernel in found if registers(kernel, isa) <= isa.registers]


def _steps_fit(case: MicroKernelCase, m_u: int) -> bool:
    """Whether steps of m_u vectors make up what the loops count in: units, and of several units whole groups."""
    vectors = unit_vectors(case.bits, lane_bits(case.planes))
    if case.operator == "lut_matmul" or m_u <= vectors:
        return vectors % m_u == 0
    depth = m_u * (4 if case.planes else 1)  # values of K, of which a byte's lane holds four side by side
    return m_u % vectors == 0 and group_matmul.SMALLEST_GROUP % depth == 0


def variants(case: MicroKernelCase, isa: InstructionSet) -> list[MicroKernel]:
    """The few that are emitted, the default first: those that hold most sums, which need fewest loads of x for each.

    Where two products or more can be widened together, that comes first.
    """
    together = adds_pairs(case.planes, isa)
    found = sorted(search(case, isa), key=lambda each: (together and each.m_u > 1, each.t_u, each.m_u), reverse=True)
    return found[:VARIANTS]
