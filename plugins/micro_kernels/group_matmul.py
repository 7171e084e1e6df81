"""The micro-kernel of GroupMatMul. Lanes are rows of the weight: a vector holds `lanes` of them, with four
values of K each where bytes are multiplied.

    y[r][n] += scale[g][n]·Σ_k x[r][k]·(q[n][k] - zero_point[g][n]) - minimum[g][n]·Σ_k x[r][k]
                                                                   for the groups g of a stretch of K

with x in fixed point as QIGen's equation 2, Σ x·q - zero_point·Σ x, in integers and exact: in one of 32 bits where x
has two planes, for which groups are short enough, else in one for each plane. y rests in memory and is added to once a
group, so that the registers hold nothing but the group's sums.

With levels (the case's operator is `GROUP_LEVELS`) a look-up takes the place of q less the zero point; levels in bytes
have 128 added, which is the zero point of all. Of 8 bits they are read from memory, unless they can be computed, as
those of FP8 can. They lie on lines, eight on each: slope[q / 8]·(q mod 8) + start[q / 8] takes half of the time.
With AVX2 their bits are taken for some of a float32's, in a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from intaglio.plugins.micro_kernels.computed_levels import FloatBits, Lines
from intaglio.plugins.micro_kernels.instruction_sets import ByteForms, InstructionSet, pairs_that_fit
from intaglio.plugins.micro_kernels.lut_matmul import LookupTables, emit_halves
from intaglio.plugins.micro_kernels.micro_kernel import (
    GROUP_LEVELS,
    TILE_ROWS,
    MicroKernel,
    computes,
    lane_bits,
    multiplies_words,
    reads_one_stream,
    sum_count,
)
from intaglio.plugins.micro_kernels.prefetching import emit_prefetch
from intaglio.plugins.micro_kernels.source import RowPointers, SourceWriter, plus
from intaglio.plugins.micro_kernels.units import LOAD, unit_bytes, unit_vectors
from intaglio.plugins.micro_kernels.unpacking import Unpacking

BLOCK = 16  # rows of a unit
TILE_BLOCKS = TILE_ROWS // BLOCK  # units side by side in a tile
AHEAD = 1024  # bytes


class GroupMatMulEmitter:
    """Writes one micro-kernel."""

    def __init__(self, kernel: MicroKernel, isa: InstructionSet) -> None:
        self.kernel, self.isa, self.forms = kernel, isa, isa.forms
        self.case = kernel.case
        self.bytes: ByteForms | None = isa.bytes if kernel.case.planes else None
        self.unpacking = Unpacking(kernel.case, isa)
        self.levels: LookupTables | Lines | FloatBits | None = None
        self.vectors = unit_vectors(self.case.bits, lane_bits(self.case.planes))
        self.units = max(kernel.m_u // self.vectors, 1)  # of one turn of the loop
        self.words = multiplies_words(self.case, isa)
        self.adds_pairs = self.bytes is not None and self.bytes.adds_pairs and not self.words
        self.rows, self.planes = range(self.case.rows), range(sum_count(self.case, isa))
        self.blocks = range(kernel.t_u)
        self.step = 4 if self.bytes else 1  # values of K of a vector
        # Units of a block follow each other where a micro-kernel takes a part of a tile's rows; else those of all do.
        self.unit_stride = unit_bytes(self.case.bits) * (1 if isa.lanes < BLOCK else TILE_BLOCKS)

    def emit(self, emit: SourceWriter) -> None:
        """The whole function."""
        with emit.block(f"static void {self.kernel.name}(const GroupStretch& s)"):
            if computes(self.case, self.isa):
                with emit.block("if (s.computed)"):
                    self.levels = (FloatBits if self.forms.floats_of else Lines)(self.isa, self.unpacking)
                    self._groups(emit)
                    emit("return;")
            if self.case.operator == GROUP_LEVELS:
                self.levels = LookupTables(self.case, self.isa)
            self._groups(emit)

    def _groups(self, emit: SourceWriter) -> None:
        if self.levels:
            self.levels.constants(emit)
            self.levels.load(emit, 0)
        else:
            self.unpacking.constants(emit, mask=(1 << self.case.bits) - 1)
        emit("const uint8_t* unit = s.units;")
        self.x = RowPointers(emit, self.rows, self.planes, "int8_t" if self.bytes else "float")
        with emit.block("for (int64_t group = 0; group < s.groups; ++group)"):
            self._zero(emit)
            with emit.block(f"for (int64_t u = 0; u < s.group_units; {self._advance()})"):
                self._prefetch(emit)
                for first in range(0, self.vectors * self.units, self.kernel.m_u):
                    self._step(emit, list(range(first, first + self.kernel.m_u)))
                emit(f"unit += {self.units * self.unit_stride};")
                self.x.advance(self.units * self.vectors * self.step * (2 if self.words else 1))
            for block in self.blocks:
                self._finish(emit, block)

    def _prefetch(self, emit: SourceWriter) -> None:
        """Where each block is a stream, ask for lines `AHEAD`: 4 bits gain 8 %."""
        if reads_one_stream(self.kernel, self.isa):
            emit_prefetch(emit, self.units * self.unit_stride)
        elif self.isa.lanes < BLOCK:
            for block in range(-(-self.kernel.t_u * self.isa.lanes // BLOCK)):
                for line in range(0, self.units * self.unit_stride, LOAD):
                    emit(f"__builtin_prefetch({plus(self._block(block), AHEAD + line)});")

    def _advance(self) -> str:
        return "++u" if self.units == 1 else f"u += {self.units}"

    def _zero(self, emit: SourceWriter) -> None:
        if self.bytes:
            for r in self.rows:
                for b in self.blocks:
                    names = ", ".join(f"sum{r}_{b}_{p} = {self.bytes.zero}" for p in self.planes)
                    emit(f"{self.forms.integers} {names};")
            return
        for b in () if self.levels else self.blocks:
            at = plus("s.zero_points + group * s.zero_stride", b * self.isa.lanes)
            address = f"reinterpret_cast<const uint8_t*>({at})"
            emit(f"const {self.forms.integers} zero_point{b} = {self.forms.load_integers.format(address)};")
        for r in self.rows:
            emit(f"{self.forms.floats} " + ", ".join(f"sum{r}_{b} = {self.forms.zero}" for b in self.blocks) + ";")

    def _step(self, emit: SourceWriter, vectors: list[int]) -> None:
        with emit.block(""):
            for block in self.blocks:
                self._weights(emit, block, vectors)
            for row in self.rows:
                self._products(emit, row, vectors)
                if self.bytes and self.adds_pairs:
                    self._pairs(emit, self.bytes, row, vectors)

    def _weights(self, emit: SourceWriter, block: int, vectors: list[int]) -> None:
        """w<block>_<vector>: levels, or the numbers, less the zero point and as float32 where x is float32."""
        lanes = self.isa.lanes
        blocks, within = block * lanes // BLOCK, block * lanes % BLOCK * 4
        for unit in sorted({vector // self.vectors for vector in vectors}):
            here = [vector for vector in vectors if vector // self.vectors == unit]
            name = f"loaded{block}_{unit}"
            offset = unit * self.unit_stride + within
            self.unpacking.load(emit, name, self._block(blocks), offset, [vector % self.vectors for vector in here])
            for vector in here:
                if self.levels:
                    numbers = f"{'level' if self.words else 'w'}{block}_{vector}"
                    self.levels.entries(emit, numbers, 0, name, vector % self.vectors)
                    if not self.words:
                        continue
                else:
                    numbers = self.unpacking.numbers(name, vector % self.vectors)
                if self.bytes and self.words:
                    emit_halves(emit, self.isa, f"w{block}_{vector}", numbers)
                elif self.bytes:
                    emit(f"const {self.forms.integers} w{block}_{vector} = {numbers};")
                else:
                    emit(f"const {self.forms.integers} q{block}_{vector} = {numbers};")
                    steps = self.forms.subtract.format(f"q{block}_{vector}", f"zero_point{block}")
                    emit(f"const {self.forms.floats} w{block}_{vector} = {self.forms.to_float.format(steps)};")

    def _block(self, index: int) -> str:
        """The address of a block's unit."""
        return f"unit + {index} * s.block_stride" if index else "unit"

    def _products(self, emit: SourceWriter, row: int, vectors: list[int]) -> None:
        for vector in vectors:
            at = vector * self.step
            if self.bytes is None:
                value = f"x{row}_{vector}"
                emit(f"const {self.forms.floats} {value} = {self.forms.broadcast.format(self.x.at(row, 0, at))};")
                for b in self.blocks:
                    name = f"sum{row}_{b}"
                    emit(f"{name} = {self.forms.multiply_add.format(f'w{b}_{vector}', value, name)};")
                continue
            if self.words:
                self._words(emit, self.bytes, row, vector)
                continue
            for p in self.planes:
                value = f"x{row}_{vector}_{p}"
                four = self.forms.set_integers.format(f"four_bytes({self.x.at(row, p, at)})")
                emit(f"const {self.forms.integers} {value} = {four};")
                if self.adds_pairs:
                    continue
                for b in self.blocks:
                    name = f"sum{row}_{b}_{p}"
                    emit(f"{name} = {self.bytes.multiply_add.format(name, f'w{b}_{vector}', value)};")

    def _words(self, emit: SourceWriter, forms: ByteForms, row: int, vector: int) -> None:
        """Add the products of four values of K; x has the first and the third, then the second and the fourth."""
        for half in range(2):
            address = self.x.at(row, 0, 8 * vector + 4 * half)
            emit(f"const {self.forms.integers} x{row}_{vector}_{half} = "
                 f"{self.forms.set_integers.format(f'four_bytes({address})')};")  # fmt: skip
        for b in self.blocks:
            products = [
                forms.multiply_words.format(f"w{b}_{vector}_{half}", f"x{row}_{vector}_{half}") for half in range(2)
            ]
            name = f"sum{row}_{b}_0"
            emit(f"{name} = {self.forms.add.format(name, self.forms.add.format(*products))};")

    def _pairs(self, emit: SourceWriter, forms: ByteForms, row: int, vectors: list[int]) -> None:
        """Add sums of two products each, as many together as fit into 16 bits."""
        most = pairs_that_fit(self.case.bits)
        for p in self.planes:
            for b in self.blocks:
                name = f"sum{row}_{b}_{p}"
                for first in range(0, len(vectors), most):
                    products = [
                        forms.multiply_pairs.format(f"w{b}_{vector}", f"x{row}_{vector}_{p}")
                        for vector in vectors[first : first + most]
                    ]
                    emit(f"{name} = {forms.widen_add.format(name, reduce(forms.add_pairs.format, products))};")

    def _finish(self, emit: SourceWriter, block: int) -> None:
        """Add a group's sums to y."""
        row_of_tile = block * self.isa.lanes
        with emit.block(""):
            emit(f"const {self.forms.floats} scale = load_factors(s.scales, group, {row_of_tile});")
            if self.bytes:
                zero_points = plus("s.zero_points + group * s.zero_stride", row_of_tile)
                address = f"reinterpret_cast<const uint8_t*>({zero_points})"
                emit(f"const {self.forms.integers} zero_point = {self.forms.load_integers.format(address)};")
                if len(self.planes) > 2:
                    emit("constexpr float BASE = 256;  // of the planes")
                    emit(f"const {self.forms.floats} base = {self.forms.broadcast.format('&BASE')};")
            for row in self.rows:
                y = plus("s.y", row * 64 + row_of_tile)
                value = self._total(emit, self.bytes, row, block) if self.bytes else f"sum{row}_{block}"
                total = self.forms.multiply_add.format(value, "scale", self.forms.load.format(y))
                emit(f"{self.forms.floats} y{row} = {total};")
            if not self.levels:
                with emit.block("if (s.has_minimums)"):
                    emit(f"const {self.forms.floats} minimum = load_factors(s.minimums, group, {row_of_tile});")
                    for row in self.rows:
                        sum_of_x = self._sum_of_x(emit, row)
                        emit(f"y{row} = {self.forms.multiply_add.format('minimum', sum_of_x, f'y{row}')};")
            for row in self.rows:
                emit(self.forms.store.format(plus("s.y", row * 64 + row_of_tile), f"y{row}") + ";")

    def _total(self, emit: SourceWriter, forms: ByteForms, row: int, block: int) -> str:
        """Name of the sum of a group less the zero points' part, as float32; two planes are one integer before."""
        sums = [f"sum{row}_{block}_{p}" for p in self.planes]
        if len(sums) == 2:
            low, high = sums
            joined = self.forms.add.format(low, self.forms.shift_left.format(high, 8))
            emit(f"const {self.forms.integers} joined{row} = {joined};")
            sums = [f"joined{row}"]
        totals = []
        for index, each in enumerate(sums):
            of_x = self.forms.set_integers.format(self._at_sums(row, len(sums), index))
            offset = forms.multiply.format("zero_point", of_x)
            totals.append(self.forms.to_float.format(self.forms.subtract.format(each, offset)))
        return self._join(emit, f"total{row}", totals)

    def _sum_of_x(self, emit: SourceWriter, row: int) -> str:
        """Name of the sum of x over the group, in all lanes."""
        if not self.bytes:
            emit(f"const {self.forms.floats} x_sum{row} = "
                 f"{self.forms.broadcast.format('s.x_sums + group' + self._stride(row))};")  # fmt: skip
            return f"x_sum{row}"
        count = 1 if self.case.planes == 2 else len(self.planes)
        parts = [
            self.forms.to_float.format(self.forms.set_integers.format(self._at_sums(row, count, index)))
            for index in range(count)
        ]
        return self._join(emit, f"x_sum{row}", parts)

    def _at_sums(self, row: int, count: int, index: int) -> str:
        return f"s.sums[group * {count} + {index}{self._stride(row)}]"

    def _stride(self, row: int) -> str:
        return f" + {row} * s.sums_stride" if row else ""

    def _join(self, emit: SourceWriter, name: str, digits: Sequence[str]) -> str:
        """The name of the number with these digits to the base of 256, the lowest first."""
        for index, digit in enumerate(digits):
            emit(f"const {self.forms.floats} {name}_{index} = {digit};")
        value = f"{name}_{len(digits) - 1}"
        for index in reversed(range(len(digits) - 1)):
            value = self.forms.multiply_add.format(value, "base", f"{name}_{index}")
        return value
