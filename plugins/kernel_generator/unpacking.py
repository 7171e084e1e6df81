"""Emits what brings the numbers of a packed weight into vectors: loads, shifts, masks."""

from __future__ import annotations

from intaglio.plugins.kernel_generator.instruction_sets import InstructionSet
from intaglio.plugins.kernel_generator.micro_kernel import Case, lane_bits
from intaglio.plugins.kernel_generator.source import Source, plus
from intaglio.plugins.kernel_generator.units import LOAD, Piece, pieces, upper_bits_are_clear


class Unpacking:
    """The numbers of one case, as vectors of words or bytes."""

    def __init__(self, case: Case, isa: InstructionSet) -> None:
        self.bits = case.bits
        self.lane_bits = lane_bits(case.planes)
        self.forms = isa.forms
        self.shift_form = isa.bytes.shift_right if self.lane_bits == 8 and isa.bytes else isa.forms.shift_right
        self.set_form = isa.bytes.set_bytes if self.lane_bits == 8 and isa.bytes else isa.forms.set_integers

    def constants(self, emit: Source, mask: bool) -> None:
        """The vectors that `masked` and `vector` use."""
        if mask and self.bits < self.lane_bits:
            emit(f"const {self.forms.integers} mask = {self.set_form.format((1 << self.bits) - 1)};")
        if self.bits == 3:
            emit(f"const {self.forms.integers} low_bits = {self.set_form.format(3)};")

    def load(self, emit: Source, name: str, pointer: str, offset: int, vectors: list[int]) -> None:
        """Load what `vectors` of the unit at `pointer` + offset are made from, each load once."""
        for load in sorted({piece.load for vector in vectors for piece in pieces(self.bits, self.lane_bits, vector)}):
            address = plus(pointer, offset + LOAD * load)
            emit(f"const {self.forms.integers} {name}_{load} = {self.forms.load_integers.format(address)};")

    def vector(self, name: str, vector: int) -> str:
        """The numbers of a vector, with anything above them; `name` is what `load` got."""
        found = [self._shifted(name, piece) for piece in pieces(self.bits, self.lane_bits, vector)]
        return found[0] if len(found) == 1 else self.forms.merge.format("low_bits", *found)

    def masked(self, name: str, vector: int) -> str:
        """The numbers of a vector alone."""
        numbers = self.vector(name, vector)
        whole = self.bits == self.lane_bits
        clear = self.lane_bits == 32 and upper_bits_are_clear(self.bits, 32, vector)
        return numbers if whole or clear else self.forms.bit_and.format(numbers, "mask")

    def _shifted(self, name: str, piece: Piece) -> str:
        loaded = f"{name}_{piece.load}"
        return loaded if piece.shift == 0 else self.shift_form.format(loaded, piece.shift)
