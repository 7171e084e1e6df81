"""The micro-kernel of LutMatMul. Lanes go along K: 4 to 16 values of float32, or four times as many bytes.

    y[r][n] += Σ_k x[r][k]·table[n][index[n][k]]        over a stretch of K

Each weight is looked up where it is multiplied, for all rows of x at once. (To look blocks of weights up first, once
for many rows of x, was slower: 94 G products/s against 98 at 64 rows in 2 planes, and 58 at two. With one plane, and
with matrix tiles, it is faster: plugins/lut_matmul/byte_panels.h.)
Sums of bytes are kept for each plane of x and are exact. With AVX2, whose instructions add products of bytes up in 16
bits, entries are widened to words of 16 bits, and x is in words: a stretch is then as long as its sums have 32 bits.
"""

from __future__ import annotations

from intaglio.plugins.micro_kernels.instruction_sets import ByteForms, InstructionSet
from intaglio.plugins.micro_kernels.micro_kernel import (
    MicroKernel,
    MicroKernelCase,
    gathers,
    lane_bits,
    looks_up_pairs,
    masks_index,
    multiplies_words,
)
from intaglio.plugins.micro_kernels.prefetching import emit_prefetch
from intaglio.plugins.micro_kernels.source import RowPointers, SourceWriter, plus
from intaglio.plugins.micro_kernels.units import LOAD, unit_bytes, unit_vectors
from intaglio.plugins.micro_kernels.unpacking import Unpacking

GROUP = 4  # rows of the weight whose units lie side by side
BLOCK = 16  # rows of the weight that share y's rows of sums


class LookupTables:
    """The look-ups of one case: t<row> is the table of a row of the weight, or t<row>_0 and t<row>_1 its halves.

    Of bytes there may be u<row>, too: the same table, for the index above the one that t<row> looks at. Tables of more
    than 16 entries stay in memory, where t<row> points. GroupMatMul's levels are the table of row 0.
    """

    def __init__(self, case: MicroKernelCase, isa: InstructionSet) -> None:
        self.isa, self.forms, self.bits = isa, isa.forms, case.bits
        self.bytes = isa.bytes if case.planes else None
        self.pairs, self.gathers = looks_up_pairs(case, isa), gathers(case)
        self.masks = masks_index(case, isa)
        self.halves = 1 if self.bytes else -(-(2**case.bits) // isa.table_lanes)
        self.unpacking = Unpacking(case, isa)

    def load(self, emit: SourceWriter, row: int) -> None:
        """Load the table of a row."""
        address = "s.tables" if row == 0 else f"s.tables + {row} * s.table_stride"
        if self.bytes:
            emit(f"const {self.forms.integers} t{row} = repeat<{2**self.bits}>({address});")
            if self.pairs:
                upper = self.bytes.look_up.format(f"t{row}", f"lane_numbers({self.bits})")
                emit(f"const {self.forms.integers} u{row} = {upper};")
            return
        floats = f"reinterpret_cast<const float*>({address})"
        if self.gathers:
            emit(f"const float* const t{row} = {floats};")
            return
        for half in range(self.halves):
            name = f"t{row}" if self.halves == 1 else f"t{row}_{half}"
            entries = self.forms.load_table.format(plus(floats, half * self.isa.table_lanes))
            emit(f"const {self.forms.table} {name} = {entries};")

    def constants(self, emit: SourceWriter) -> None:
        """What every look-up uses."""
        index_bits = self.bytes.index_bits if self.bytes else self.bits
        self.unpacking.constants(emit, mask=(1 << index_bits) - 1 if self.masks else None)

    def entries(self, emit: SourceWriter, name: str, row: int, loaded: str, vector: int) -> None:
        """Define `name`, the weights of a vector of the unit that was loaded as `loaded`."""
        take = self.unpacking.masked if self.masks else self.unpacking.shifted
        table, at = f"t{row}", self.unpacking.place(vector)
        if self.pairs and at.shift // self.bits % 2:
            table, at = f"u{row}", at._replace(shift=at.shift - self.bits)
        index = take(loaded, at)
        if self.bytes:
            emit(f"const {self.forms.integers} {name} = {self.bytes.look_up.format(table, index)};")
        elif self.gathers:
            emit(f"const {self.forms.floats} {name} = {self.forms.gather.format(table, index)};")
        elif self.halves == 1:
            emit(f"const {self.forms.floats} {name} = {self.forms.look_up.format(table, index)};")
        else:
            emit(f"const {self.forms.integers} index{name} = {index};")
            low, high = (self.forms.look_up.format(f"t{row}_{half}", f"index{name}") for half in range(2))
            emit(f"const {self.forms.floats} {name} = {self.forms.choose.format(low, high, f'index{name}')};")


def emit_halves(emit: SourceWriter, isa: InstructionSet, name: str, numbers: str) -> None:
    """Define <name>_0 and <name>_1, the even and the odd ones of a vector of bytes as words of 16 bits."""
    assert isa.bytes is not None
    for half, form in enumerate((isa.bytes.even_words, isa.bytes.odd_words)):
        emit(f"const {isa.forms.integers} {name}_{half} = {form.format(numbers)};")


class LutMatMulEmitter:
    """Writes one micro-kernel."""

    def __init__(self, kernel: MicroKernel, isa: InstructionSet) -> None:
        self.kernel, self.isa, self.forms, self.case = kernel, isa, isa.forms, kernel.case
        self.bytes: ByteForms | None = isa.bytes if kernel.case.planes else None
        self.lane_bytes = 1 if self.bytes else 4
        self.lanes = isa.lanes * 4 // self.lane_bytes  # values of K of a vector
        self.unit_lanes = LOAD // self.lane_bytes
        self.words = multiplies_words(self.case, isa)
        self.rows, self.planes = range(self.case.rows), range(1 if self.words else max(self.case.planes, 1))
        self.weights = range(kernel.t_u)

    def emit(self, emit: SourceWriter) -> None:
        """The whole function."""
        with emit.block(f"static void {self.kernel.name}(const LutStretch& s)"):
            self.x = RowPointers(emit, self.rows, self.planes, "int8_t" if self.bytes else "float")
            for r in self.rows:
                for n in self.weights:
                    names = ", ".join(f"{self._sum(r, n, p)} = {self._zero()}" for p in self.planes)
                    emit(f"{self._type()} {names};")
            self._loop(emit)
            kind = "int32_t" if self.bytes else "float"
            emit(f"{kind}* const y = static_cast<{kind}*>(s.sums);")
            for r in self.rows:
                for p in self.planes:
                    self._add(emit, r, p)

    def _loop(self, emit: SourceWriter) -> None:
        """All of the stretch, a unit at a time; in parts where vectors are shorter than a load."""
        table = LookupTables(self.case, self.isa)
        table.constants(emit)
        for row in self.weights:
            table.load(emit, row)
        emit("const uint8_t* unit = s.units;")
        bits, vectors = self.case.bits, unit_vectors(self.case.bits, lane_bits(self.case.planes))
        with emit.block(f"for (int64_t k = 0; k < s.depth; k += {vectors * self.unit_lanes})"):
            emit_prefetch(emit, GROUP * unit_bytes(bits))
            if self.lanes == self.unit_lanes:
                self._steps(emit, table, vectors, "unit", "")
            else:
                start = "unit + part" if self.bytes else f"unit + {self.lane_bytes} * part"
                with emit.block(f"for (int part = 0; part < {self.unit_lanes}; part += {self.lanes})"):
                    self._steps(emit, table, vectors, start, " + part")
            emit(f"unit += {GROUP * unit_bytes(bits)};")
            self.x.advance(vectors * self.unit_lanes * (2 if self.words else 1))

    def _steps(self, emit: SourceWriter, table: LookupTables, vectors: int, unit: str, part: str) -> None:
        for first in range(0, vectors, self.kernel.m_u):
            step = list(range(first, first + self.kernel.m_u))
            with emit.block(""):
                for n in self.weights:
                    table.unpacking.load(emit, f"loaded{n}", unit, n * unit_bytes(self.case.bits), step)
                    for vector in step:
                        name = f"{'entries' if self.words else 'w'}{n}_{vector}"
                        table.entries(emit, name, n, f"loaded{n}", vector)
                        if self.words:
                            emit_halves(emit, self.isa, f"w{n}_{vector}", name)
                for r in self.rows:
                    for p in self.planes:
                        for vector in step:
                            self._products(emit, r, p, vector, part)

    def _products(self, emit: SourceWriter, row: int, plane: int, vector: int, part: str) -> None:
        """Of a vector of a row of x with the same one of every weight."""
        if self.bytes and self.words:
            self._words(emit, self.bytes, row, vector, part)
            return
        address = self.x.at(row, plane, vector * self.unit_lanes) + part
        name = f"x{row}_{vector}_{plane}"
        if self.bytes:
            emit(f"{self.forms.integers} {name} = {self.forms.load_integers.format(address)};")
            emit(f"keep({name});")
        else:
            emit(f"const {self.forms.floats} {name} = {self.forms.load.format(address)};")
        for n in self.weights:
            total, w = self._sum(row, n, plane), f"w{n}_{vector}"
            if self.bytes:
                emit(f"{total} = {self.bytes.multiply_add.format(total, w, name)};")
            else:
                emit(f"{total} = {self.forms.multiply_add.format(w, name, total)};")

    def _words(self, emit: SourceWriter, forms: ByteForms, row: int, vector: int, part: str) -> None:
        """The same with x in words: of each vector of bytes the even ones, then the odd ones."""
        for half in range(2):
            address = self.x.at(row, 0, 2 * vector * self.unit_lanes + self.lanes * half) + part.replace(
                "part", "2 * part"
            )
            emit(f"const {self.forms.integers} x{row}_{vector}_{half} = {self.forms.load_integers.format(address)};")
        for n in self.weights:
            products = [
                forms.multiply_words.format(f"w{n}_{vector}_{half}", f"x{row}_{vector}_{half}") for half in range(2)
            ]
            total = self._sum(row, n, 0)
            emit(f"{total} = {self.forms.add.format(total, self.forms.add.format(*products))};")

    def _add(self, emit: SourceWriter, row: int, plane: int) -> None:
        """Add the lanes of a row's sums to y; those of words, which may have 32 bits themselves, as two planes."""
        start = f"{row} * s.sums_stride + " if row else ""
        totals = [self._sum(row, n, plane) for n in self.weights]
        if self.words:
            zeros = [self._zero()] * (GROUP - len(totals))
            emit(f"add_word_sums<{BLOCK}, {len(totals)}>(y + {start}0, {', '.join([*totals, *zeros])});")
            return
        if self.bytes and len(totals) == GROUP:
            emit(f"add_sums(y + {start}{plane * BLOCK}, {', '.join(totals)});")
            return
        for n, total in enumerate(totals):
            lanes = (self.bytes or self.forms).sum.format(total)
            emit(f"y[{start}{plane * BLOCK + n}] += {lanes};")

    def _sum(self, row: int, weight: int, plane: int) -> str:
        return f"sum{row}_{weight}_{plane}" if self.bytes else f"sum{row}_{weight}"

    def _type(self) -> str:
        return self.forms.integers if self.bytes else self.forms.floats

    def _zero(self) -> str:
        return (self.bytes or self.forms).zero
